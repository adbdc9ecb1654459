"""Which windows are drawn: uniformly, by priority, by recency, or by a mixture of these.

Windows are numbered in the order in which they became complete. Those held are `first` to `end - 1`: new ones come at
the end, the oldest go at the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from dreamfleet.core.errors import ReplayError
from dreamfleet.replay.sumtree import SumTree

PROPOSED_AT_ONCE = 64  # windows: each is compared with each


class Selector(Protocol):
    def draw(self, rng: np.random.Generator, count: int, first: int, end: int, aside: bool = False) -> np.ndarray:
        """Numbers of windows from `first` to `end - 1`, with replacement. `aside`: later draws do not depend on it."""


class Uniform:
    """Every window alike."""

    def draw(self, rng: np.random.Generator, count: int, first: int, end: int, aside: bool = False) -> np.ndarray:
        return rng.integers(first, end, count)


class Recency:
    """A window's weight is 1 / age ** exponent; the newest has age 1.

    Weights depend on the age alone, so their running sums are a fixed table that only grows, and a draw is a search in
    it.
    """

    def __init__(self, exponent: float = 1.0) -> None:
        self._exponent = exponent
        self._sums = np.zeros(0)

    def draw(self, rng: np.random.Generator, count: int, first: int, end: int, aside: bool = False) -> np.ndarray:
        held = end - first
        if held > len(self._sums):
            ages = np.arange(1, max(1024, 2 * held) + 1, dtype=np.float64)
            self._sums = np.cumsum(ages**-self._exponent)
        ages = np.searchsorted(self._sums[:held], rng.random(count) * self._sums[held - 1], side="right") + 1
        return np.asarray(end - np.minimum(ages, held))


class Prioritized:
    """A window's weight comes from the priorities of its steps: maxfrac * max + (1 - maxfrac) * mean, each ** exponent.

    An infinite priority is that of a step nothing is known of. It counts for nothing beside others; a window with none
    but such steps has an infinite weight and is drawn first. If a single such step were enough, every new step would
    make another window of its stream come first, and hardly any other would ever be drawn.

    The store keeps the priorities of steps and sets the weights of windows that changed.
    """

    def __init__(self, capacity: int, exponent: float, maxfrac: float, initial: float, zero_on_sample: bool) -> None:
        self.initial = initial
        self.zero_on_sample = zero_on_sample
        # Takes the priority from the steps of the first of these windows and returns of how many: up to one that shares
        # steps with one before it. None: windows that are drawn keep their priority.
        self.take: Callable[[np.ndarray], int] | None = None
        self._exponent = exponent
        self._maxfrac = maxfrac
        self._size = capacity + 1
        self._tree = SumTree(self._size)

    def weigh(self, priorities: np.ndarray, length: int) -> np.ndarray:
        """Weights of all windows of `length` steps in rows of steps: as many fewer than there are steps."""
        powers = priorities.astype(np.float64) ** self._exponent
        known = np.isfinite(powers)
        if not known.any():
            return np.full((len(powers), powers.shape[1] - length + 1), np.inf)
        powers = np.where(known, powers, 0.0)
        counts = _over_runs(np.add, known.astype(np.float64), length)
        mean = _over_runs(np.add, powers, length) / np.maximum(counts, 1.0)
        weights = self._maxfrac * _over_runs(np.maximum, powers, length) + (1 - self._maxfrac) * mean
        return np.where(counts > 0, weights, np.inf)

    def set_weights(self, windows: np.ndarray, weights: np.ndarray) -> None:
        if len(windows):
            self._tree.set(windows % self._size, weights)

    def remove(self, first: int, end: int) -> None:
        windows = np.arange(max(first, end - self._size), end)
        self.set_weights(windows, np.zeros(len(windows)))

    def draw(self, rng: np.random.Generator, count: int, first: int, end: int, aside: bool = False) -> np.ndarray:
        """When every weight is zero, as after all was sampled and nothing updated, all windows are alike."""
        drawn = np.zeros(0, np.int64)
        while len(drawn) < count:
            left = count - len(drawn)
            if not self._tree.total > 0:
                found = rng.integers(first, end, left)
            elif aside or self.take is None:
                found = self._propose(rng, left, first)
            else:
                found = self._draw_and_take(rng, min(left, PROPOSED_AT_ONCE), first, self.take)
            drawn = np.concatenate([drawn, found])
        return drawn

    def _draw_and_take(
        self, rng: np.random.Generator, most: int, first: int, take: Callable[[np.ndarray], int]
    ) -> np.ndarray:
        """As if one window were drawn after the other, each from the weights that those before it have left.

        Windows that share no step keep their weights, so they are drawn at once. One that shares some stays with the
        share of its weight that is left; what came after it is drawn again.
        """
        proposed = self._propose(rng, most, first)
        before = self._tree.get(proposed % self._size)
        taken = take(proposed)
        if taken < most:
            weight, left = float(before[taken]), float(self._tree.get(proposed[taken : taken + 1] % self._size)[0])
            if left == weight or rng.random() * weight < left:
                taken += take(proposed[taken : taken + 1])
        return proposed[:taken]

    def _propose(self, rng: np.random.Generator, count: int, first: int) -> np.ndarray:
        return first + (self._tree.draw(rng, count) - first) % self._size


def _over_runs(combine: np.ufunc, values: np.ndarray, length: int) -> np.ndarray:
    """Of every run of `length` columns, put together from runs of 1, 2, 4, ... columns."""
    columns = values.shape[1] - length + 1
    found, begin, size = None, 0, 1
    while True:
        if length & size:
            part = values[:, begin : begin + columns]
            found = part if found is None else combine(found, part)
            begin += size
        if 2 * size > length:
            return np.asarray(found)
        values = combine(values[:, :-size], values[:, size:])
        size *= 2


class Mixture:
    """Each draw uses one of several selectors, chosen by its share."""

    def __init__(self, selectors: Sequence[Selector], shares: Sequence[float]) -> None:
        self._selectors = list(selectors)
        self._shares = np.cumsum(shares) / np.sum(shares)

    def draw(self, rng: np.random.Generator, count: int, first: int, end: int, aside: bool = False) -> np.ndarray:
        chosen = np.searchsorted(self._shares, rng.random(count), side="right")
        windows = np.empty(count, np.int64)
        for number, selector in enumerate(self._selectors):
            mine = chosen == number
            if mine.any():
                windows[mine] = selector.draw(rng, int(mine.sum()), first, end, aside)
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
