"""What the learner asks other roles with: its connections, and the batches that come over one of them."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dreamfleet.core.errors import Disconnected, TransportError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.waits import Wait, Waits
from dreamfleet.transport.client import Client, Future

GONE_AFTER_S = 2.0  # without a connection for this long at the end, the other role is taken to be gone


@dataclass(frozen=True)
class LearnerClients:
    """`sampler` and `updater` end their waits when the role stops; the other two still serve the last log and save."""

    sampler: Client
    updater: Client
    replay: Client
    logger: Client
    # Replay and logger for the thread that writes snapshots; without them, training waits for each snapshot.
    saving: tuple[Client, Client] | None = None

    def close(self) -> None:
        for client in (self.sampler, self.updater, self.replay, self.logger):
            client.close()
        for client in self.saving or ():
            with contextlib.suppress(TransportError):  # in use by a thread that still waits for a role that is gone
                client.close()


def expect_connected(clients: tuple[Client, ...], timeout_s: float) -> None:
    """Before the last calls of a run, which have `timeout_s` each: raise an error if a role is gone."""
    for client in clients:
        client.timeout_s = timeout_s
        client.poll()
        client.wait_connected(GONE_AFTER_S)


class RemoteStream:
    """Batches of one kind from the replay role, with up to `depth` requests in flight. Asks a restarted replay again.

    Replay cuts the chunks of a window (key `consec`) in the order of the requests. What was in flight when the
    connection was lost may have been cut, so the chunks up to the next window are skipped: the agent's carry belongs
    to another place.
    """

    def __init__(self, client: Client, method: str, waits: Waits, depth: int = 1) -> None:
        self._client = client
        self._method = method
        self._waits = waits
        self._depth = depth
        self._pending: deque[Future] = deque()

    def __iter__(self) -> Iterator[Arrays]:
        return self

    def __next__(self) -> Arrays:
        with contextlib.suppress(Disconnected):
            self._ask()  # not a part of the wait; where all is one process, it is the sampling
        lost = False
        with self._waits(Wait.REPLAY_TO_SAMPLE):  # one wait, however often replay is lost in it
            while True:
                try:
                    self._ask()
                    batch = self._pending.popleft().result()
                except Disconnected:
                    self._pending.clear()
                    lost = True
                    continue
                if not lost or not np.any(batch.get("consec", 0)):
                    return batch

    def _ask(self) -> None:
        while len(self._pending) < self._depth:
            self._pending.append(self._client.call(self._method, {}))
