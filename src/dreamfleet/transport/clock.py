"""Decisions of the global clock over RPC: replica 0 serves its board, the other replicas ask it."""

from __future__ import annotations

import numpy as np

from dreamfleet.core.clock import Decisions
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.client import Client
from dreamfleet.transport.codec import pack_json, unpack_json
from dreamfleet.transport.server import Server

METHOD = "clock_decided"
_WORKERS = 8  # one waits per replica and clock at most a moment: decisions come with every call of replica 0


def serve_clock(server: Server, board: Decisions) -> None:
    """Binds the method that other replicas call; before the server's start."""

    def decided(arrays: Arrays) -> Arrays:
        name, index, timeout_s = unpack_json(arrays["query"])
        count, fired = board.decided(str(name), int(index), float(timeout_s))
        return {"count": np.array(count, np.int64), "fired": np.array(fired, np.int64)}

    server.bind(METHOD, decided, workers=_WORKERS)


class RemoteBoard:
    """The board of replica 0, seen from another replica."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def decided(self, name: str, index: int, timeout_s: float) -> tuple[int, list[int]]:
        """How many calls of clock `name` are decided, more than `index`, and which of those from `index` on fired."""
        future = self._client.call(METHOD, {"query": pack_json([name, index, timeout_s])})
        # The server gives up at the deadline and says so; the extra second lets its answer arrive.
        reply = future.result(timeout_s + 1.0)
        return int(reply["count"]), reply["fired"].tolist()
