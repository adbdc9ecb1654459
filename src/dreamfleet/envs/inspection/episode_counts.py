"""Counts the episodes of an environment that is being tried out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np


class EpisodeCounts:
    """Takes the rows of all environments in their order. A length counts steps, without the reset before them."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._returns: list[float] = []
        self._terminated = 0
        self._open: dict[int, list[float]] = defaultdict(lambda: [0, 0.0])  # per row: length and return so far

    @property
    def count(self) -> int:
        return len(self._lengths)

    def take(self, row: int, obs: Mapping[str, Any]) -> None:
        if np.any(obs.get("is_first", False)):
            self._open[row] = [0, 0.0]
            return
        episode = self._open[row]
        episode[0] += 1
        episode[1] += float(np.nan_to_num(np.sum(obs.get("reward", 0.0))))
        if np.any(obs.get("is_last", False)):
            self._lengths.append(int(episode[0]))
            self._returns.append(episode[1])
            self._terminated += bool(np.any(obs.get("is_terminal", False)))
            del self._open[row]

    def drop(self) -> None:
        """Forgets episodes that were cut off."""
        self._open.clear()

    def all_terminated_at(self) -> int:
        """The length that all episodes had, three or more of them, none of which was truncated; else 0."""
        same = self.count >= 3 and len(set(self._lengths)) == 1 and self._terminated == self.count
        return self._lengths[0] if same else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "terminated": self._terminated,
            "truncated": self.count - self._terminated,
            "lengths": _spread(self._lengths),
            "returns": _spread(self._returns),
        }


def _spread(values: list[Any]) -> dict[str, float] | None:
    return {"min": min(values), "mean": float(np.mean(values)), "max": max(values)} if values else None
