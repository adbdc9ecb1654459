"""Sends metrics to the logger, for roles that send it nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from dreamfleet.core.errors import DeadlineExceeded, TransportError
from dreamfleet.transport.client import Client, Future
from dreamfleet.transport.codec import pack_json

LAST_S = 1.0


class LoggerClient:
    """Never waits for the logger: while the last metrics are on their way, newer ones are not sent.

    A role on another machine may not even reach it, and does its work all the same.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._last: Future | None = None

    def send(self, metrics: Mapping[str, float]) -> None:
        if self._last is not None:
            if not self._last.done():
                return
            with contextlib.suppress(TransportError):  # they were lost with the connection
                self._last.result()
        self._last = self._client.call("add", {"json": pack_json({"metrics": dict(metrics)})})

    def send_last(self, metrics: Mapping[str, float], timeout_s: float = LAST_S) -> None:
        """For the end of a role: waits a little, so that the metrics are not lost with the connection."""
        self.send(metrics)
        with contextlib.suppress(TransportError, DeadlineExceeded):
            if self._last is not None:
                self._last.result(timeout_s)
