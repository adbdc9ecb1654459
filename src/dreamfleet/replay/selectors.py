"""Which windows are drawn: uniformly, by priority, by recency, or by a mixture of these.

Windows are numbered in the order in which they became complete. Those held are `first` to `end - 1`: new ones come at
the end, the oldest go at the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from dreamfleet.core.errors import ReplayError
from dreamfleet.replay.sumtree import SumTree


class Selector(Protocol):
    def draw(self, rng: np.random.Generator, count: int, first: int, end: int) -> np.ndarray:
        """Numbers of windows from `first` to `end - 1`, with replacement."""


class Uniform:
    """Every window alike."""

    def draw(self, rng: np.random.Generator, count: int, first: int, end: int) -> np.ndarray:
        return rng.integers(first, end, count)


class Recency:
    """A window's weight is 1 / age ** exponent; the newest has age 1.

    Weights depend on the age alone, so their running sums are a fixed table that only grows, and a draw is a search in
    it.
    """

    def __init__(self, exponent: float = 1.0) -> None:
        self._exponent = exponent
        self._sums = np.zeros(0)

    def draw(self, rng: np.random.Generator, count: int, first: int, end: int) -> np.ndarray:
        held = end - first
        if held > len(self._sums):
            ages = np.arange(1, max(1024, 2 * held) + 1, dtype=np.float64)
            self._sums = np.cumsum(ages**-self._exponent)
        ages = np.searchsorted(self._sums[:held], rng.random(count) * self._sums[held - 1], side="right") + 1
        return np.asarray(end - np.minimum(ages, held))


class Prioritized:
    """A window's weight comes from the priorities of its steps: maxfrac * max + (1 - maxfrac) * mean, each ** exponent.

    The store keeps the priorities of steps and tells the weights of windows that changed. Infinite weights are drawn
    first.
    """

    def __init__(self, capacity: int, exponent: float, maxfrac: float, initial: float, zero_on_sample: bool) -> None:
        self.initial = initial
        self.zero_on_sample = zero_on_sample
        self._exponent = exponent
        self._maxfrac = maxfrac
        self._size = capacity + 1
        self._tree = SumTree(self._size)
        self.drawn: list[int] = []  # by this selector, for the store to collect

    def weigh(self, priorities: np.ndarray) -> np.ndarray:
        """Weights of windows from the priorities of their steps, (windows, steps)."""
        powers = priorities.astype(np.float64) ** self._exponent
        mean, most = powers.mean(1), powers.max(1)
        if self._maxfrac in (0.0, 1.0):  # infinity times zero has no value
            return np.asarray(most if self._maxfrac else mean)
        return np.asarray(self._maxfrac * most + (1 - self._maxfrac) * mean)

    def set_weights(self, windows: np.ndarray, weights: np.ndarray) -> None:
        if len(windows):
            self._tree.set(windows % self._size, weights)

    def remove(self, first: int, end: int) -> None:
        windows = np.arange(first, end)
        self.set_weights(windows, np.zeros(len(windows)))

    def draw(self, rng: np.random.Generator, count: int, first: int, end: int) -> np.ndarray:
        """When every weight is zero, as after all was sampled and nothing updated, all windows are alike."""
        if self._tree.total > 0:
            places = self._tree.draw(rng, count)
            windows = first + (places - first) % self._size
        else:
            windows = rng.integers(first, end, count)
        self.drawn = windows.tolist()
        return windows


class Mixture:
    """Each draw uses one of several selectors, chosen by its share."""

    def __init__(self, selectors: Sequence[Selector], shares: Sequence[float]) -> None:
        self._selectors = list(selectors)
        self._shares = np.cumsum(shares) / np.sum(shares)

    def draw(self, rng: np.random.Generator, count: int, first: int, end: int) -> np.ndarray:
        chosen = np.searchsorted(self._shares, rng.random(count), side="right")
        windows = np.empty(count, np.int64)
        for number, selector in enumerate(self._selectors):
            mine = chosen == number
            if mine.any():
                windows[mine] = selector.draw(rng, int(mine.sum()), first, end)
        return windows


def make_selector(
    fracs: Mapping[str, float], capacity: int, recency_exponent: float, priority: Mapping[str, float]
) -> tuple[Selector, Prioritized | None]:
    """The selector for shares of "uniform", "priority" and "recency", and its prioritised part if there is one."""
    used = {name: share for name, share in fracs.items() if share > 0}
    unknown = set(used) - {"uniform", "priority", "recency"}
    if unknown or not used:
        raise ReplayError(f"replay fracs must give uniform, priority or recency a positive share, not {dict(fracs)}")
    prioritized = Prioritized(capacity, **priority) if "priority" in used else None  # type: ignore[arg-type]
    known = {"uniform": Uniform(), "recency": Recency(recency_exponent), "priority": prioritized}
    selectors: list[Selector] = [known[name] for name in used]  # type: ignore[misc]
    mixture = selectors[0] if len(selectors) == 1 else Mixture(selectors, list(used.values()))
    return mixture, prioritized
