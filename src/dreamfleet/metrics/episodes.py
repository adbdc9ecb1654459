"""Statistics of episodes while their steps pass by, for many environments at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dreamfleet.core.interfaces import Arrays


class EpisodeStats:
    """Sums rewards and counts steps per environment; an episode is reported once its last step has passed.

    Episodes that were joined in the middle, or whose environment was silent for longer than `timeout_s`, are dropped:
    their sums would be wrong. The first step of an episode carries no reward and is not counted as a step.
    """

    def __init__(self, timeout_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._now = now
        self._whole = np.zeros(0, bool)  # seen since its first step
        self._return = np.zeros(0, np.float64)
        self._length = np.zeros(0, np.int64)
        self._seen = np.zeros(0, np.float64)
        self._logs: dict[int, dict[str, list[float]]] = {}
        self.dropped = 0

    def add(self, data: Arrays) -> list[dict[str, Any]]:
        """Takes one step of each environment in `data["env"]` and returns the episodes that ended with it."""
        env, is_first, is_last = data["env"], data["is_first"], data["is_last"]
        self._grow(int(env.max(initial=-1)) + 1)
        now = self._now()
        silent = self._whole[env] & (now - self._seen[env] > self._timeout_s)
        abandoned = self._whole[env] & is_first & (self._length[env] > 0)
        self.dropped += int((silent | abandoned).sum())
        self._whole[env[silent]] = False
        begun = env[is_first]
        self._whole[begun] = True
        self._return[begun] = 0.0
        self._length[begun] = -1
        self._return[env] += data["reward"]
        self._length[env] += 1
        self._seen[env] = now
        self._add_logs(data)
        return [self._finish(int(index)) for index in env[is_last] if self._whole[index]]

    def _finish(self, env: int) -> dict[str, Any]:
        episode = {"env": env, "return": float(self._return[env]), "length": int(self._length[env])}
        for key, values in self._logs.pop(env, {}).items():
            episode[f"{key}/avg"] = float(np.mean(values))
            episode[f"{key}/max"] = float(np.max(values))
            episode[f"{key}/sum"] = float(np.sum(values))
        self._whole[env] = False
        self._length[env] = 0
        return episode

    def _add_logs(self, data: Arrays) -> None:
        keys = [key for key in data if key.startswith("log/")]
        if not keys:
            return
        for row, env in enumerate(data["env"].tolist()):
            if data["is_first"][row]:
                self._logs.pop(env, None)
            logs = self._logs.setdefault(env, {})
            for key in keys:
                if data[key][row].ndim == 0:
                    logs.setdefault(key, []).append(float(data[key][row]))

    def _grow(self, size: int) -> None:
        more = size - len(self._whole)
        if more > 0:
            self._whole = np.pad(self._whole, (0, more))
            self._return = np.pad(self._return, (0, more))
            self._length = np.pad(self._length, (0, more))
            self._seen = np.pad(self._seen, (0, more))
