"""Statistics of episodes while their steps pass by, for many environments at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dreamfleet.core.interfaces import Arrays

TABLE = np.dtype([("whole", bool), ("return", np.float64), ("length", np.int64), ("seen", np.float64)])


class EpisodeStats:
    """Sums rewards and counts steps per environment; an episode is reported once its last step has passed.

    Episodes that were joined in the middle, or whose environment was silent for longer than `timeout_s`, are dropped:
    their sums would be wrong. The first step of an episode carries no reward and is not counted as a step.
    """

    def __init__(self, timeout_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._now = now
        self._rows: dict[int, int] = {}  # environment to row of the table
        self._table = np.zeros(0, TABLE)  # `whole`: seen since its first step
        self.dropped = 0

    def add(self, data: Arrays) -> list[dict[str, Any]]:
        """Takes one step of each environment in `data["env"]` and returns the episodes that ended with it."""
        now = self._now()
        envs, is_first = data["env"].tolist(), data["is_first"]
        rows = self._find_rows(envs, now)
        table = self._table
        silent = table["whole"][rows] & (now - table["seen"][rows] > self._timeout_s)
        abandoned = table["whole"][rows] & is_first & (table["length"][rows] > 0)
        self.dropped += int((silent | abandoned).sum())
        table["whole"][rows[silent]] = False
        begun = rows[is_first]
        table["whole"][begun] = True
        table["return"][begun] = 0.0
        table["length"][begun] = -1
        table["return"][rows] += data["reward"]
        table["length"][rows] += 1
        table["seen"][rows] = now
        ended = np.flatnonzero(data["is_last"] & table["whole"][rows])
        return [self._finish(envs[index], int(rows[index])) for index in ended]

    def save(self) -> Arrays:
        """The episodes in progress."""
        rows = list(self._rows.values())
        fields = {name: self._table[name][rows] for name in ("whole", "return", "length")}
        return {"env": np.array(list(self._rows), np.int64), "dropped": np.array(self.dropped, np.int64), **fields}

    def load(self, data: Mapping[str, np.ndarray]) -> None:
        """An episode goes on if its environment does; one that starts over instead is counted as dropped."""
        self.dropped = int(data["dropped"])
        self._rows = {env: row for row, env in enumerate(data["env"].tolist())}
        self._table = np.zeros(len(self._rows), TABLE)
        for name in ("whole", "return", "length"):
            self._table[name] = data[name]
        self._table["seen"] = self._now()

    def _finish(self, env: int, row: int) -> dict[str, Any]:
        state = self._table[row]
        episode = {"env": env, "return": float(state["return"]), "length": int(state["length"])}
        state["whole"] = False
        state["length"] = 0
        return episode

    def _find_rows(self, envs: list[int], now: float) -> np.ndarray:
        if any(env not in self._rows for env in envs):
            if len(self._rows) + len(envs) > len(self._table):
                self._make_room(len(envs), now)
            for env in envs:
                self._rows.setdefault(env, len(self._rows))
        return np.array([self._rows[env] for env in envs], np.intp)

    def _make_room(self, count: int, now: float) -> None:
        """Forgets the environments that have been silent for too long, so that the table follows those there are."""
        kept = {env: row for env, row in self._rows.items() if now - self._table["seen"][row] <= self._timeout_s}
        gone = [row for env, row in self._rows.items() if env not in kept]
        self.dropped += int(self._table["whole"][gone].sum())
        table = np.zeros(2 * (len(kept) + count), TABLE)
        table[: len(kept)] = self._table[list(kept.values())]
        self._table = table
        self._rows = {env: row for row, env in enumerate(kept)}
