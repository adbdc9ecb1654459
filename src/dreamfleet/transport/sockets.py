"""What client and server sockets share: bounds, heartbeats, and messages of several frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq
import zmq.backend

from dreamfleet.transport.layout import Buffer

HEARTBEAT_EVERY_MS = 1000
HEARTBEAT_TIMEOUT_MS = 3000  # a peer silent for this long after a heartbeat is dead: noticed within about 4 seconds
HANDSHAKE_MS = 5000  # for a client to prove its key; then the server closes its connection
MAX_FRAME_BYTES = 1 << 30  # a larger frame costs the peer its connection
QUEUE_MESSAGES = 1000  # per peer and direction

# Plain integers: combining PyZMQ's enum members costs as much as sending a small message.
POLLIN = int(zmq.POLLIN)
NOBLOCK = int(zmq.NOBLOCK)
NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
# The method below PyZMQ's own, which adds a layer of Python for socket types of no concern here.
send_frame: Any = zmq.backend.Socket.send


def make_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.maxmsgsize = MAX_FRAME_BYTES
    socket.sndhwm = QUEUE_MESSAGES
    socket.rcvhwm = QUEUE_MESSAGES
    socket.heartbeat_ivl = HEARTBEAT_EVERY_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
    socket.reconnect_ivl = 50
    socket.reconnect_ivl_max = 1000
    return socket


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Buffer], copy: bool = False) -> None:
    """Queues a message or raises zmq.Again. Without `copy`, frames after the first are referenced until they leave."""
    if len(frames) == 1:
        send_frame(socket, frames[0], NOBLOCK)
        return
    socket.send(frames[0], NOBLOCK_MORE)
    for buffer in frames[1:-1]:
        socket.send(buffer, NOBLOCK_MORE, copy)
    socket.send(frames[-1], NOBLOCK, copy)


def receive_frames(socket: zmq.Socket[bytes]) -> tuple[zmq.Frame, Sequence[Any]]:
    """Return the next message in ZeroMQ's own memory, or raise zmq.Again: its first frame, and the others.

    That memory has no alignment that small arrays could rely on; copying the first frame costs less than keeping it.
    """
    first = socket.recv(NOBLOCK, False)
    if not first.more:
        return first, ()
    others = [socket.recv(NOBLOCK, False)]
    while others[-1].more:
        others.append(socket.recv(NOBLOCK, False))
    return first, others
