"""What happens to the connections of a socket, as events that can be polled beside it."""

from __future__ import annotations

import itertools
import os
import struct
import time
from collections.abc import Iterator

import zmq

_event = struct.Struct("=hi")
_unique = itertools.count()


class Monitor:
    """Subscribes to connection events of `watched`. Close it before the watched socket."""

    def __init__(self, watched: zmq.Socket[bytes], events: int) -> None:
        self._watched = watched
        # PyZMQ's own name repeats when a descriptor is reused before ZeroMQ has forgotten the previous monitor.
        address = f"inproc://dreamfleet-monitor-{os.getpid()}-{next(_unique)}"
        self.socket: zmq.Socket[bytes] = watched.get_monitor_socket(events, address)
        self.socket.linger = 0

    def events(self) -> Iterator[int]:
        """The events that have arrived, without waiting."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            event: int = _event.unpack(frames[0])[0]
            yield event

    def await_events(self, count: int, timeout_s: float) -> int:
        """Waits for `count` events of any kind; returns how many came in time."""
        deadline = time.monotonic() + timeout_s
        seen = 0
        while seen < count:
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0 or not self.socket.poll(left_ms):
                break
            seen += sum(1 for _ in self.events())
        return seen

    def close(self) -> None:
        self._watched.disable_monitor()
        self.socket.close()
