"""Options every socket of the fleet shares: bounds on what it takes in, and heartbeats."""

from __future__ import annotations

import zmq

HEARTBEAT_EVERY_MS = 1000
HEARTBEAT_TIMEOUT_MS = 3000  # a peer silent for this long after a heartbeat is dead: noticed within 4 seconds
MAX_FRAME_BYTES = 1 << 30  # a larger frame costs the peer its connection
QUEUE_MESSAGES = 1000  # per peer and direction


def bounded_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.maxmsgsize = MAX_FRAME_BYTES
    socket.sndhwm = QUEUE_MESSAGES
    socket.rcvhwm = QUEUE_MESSAGES
    socket.heartbeat_ivl = HEARTBEAT_EVERY_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
    socket.reconnect_ivl = 50
    socket.reconnect_ivl_max = 1000
    return socket
