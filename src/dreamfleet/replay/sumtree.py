"""A tree of sums: draws positions by weight and changes weights, for whole batches at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

WIDTH = 64  # children of a node


class SumTree:
    """Weights of positions 0 to `size - 1`, zero at first.

    Infinite weights are kept apart as counts in a second tree: as long as there are any, one of them is drawn, all of
    them alike. All methods take arrays of positions, so that a batch costs a few NumPy calls per level and no loop over
    rows.
    """

    def __init__(self, size: int) -> None:
        self._sums = _Levels(size, np.float64)
        self._infinite = _Levels(size, np.int32)

    @property
    def total(self) -> float:
        return float("inf") if self._infinite.total() else float(self._sums.total())

    def get(self, positions: np.ndarray) -> np.ndarray:
        return np.where(self._infinite.leaves[positions] > 0, np.inf, self._sums.leaves[positions])

    def set(self, positions: np.ndarray, weights: np.ndarray) -> None:
        """Of a position given twice, the last weight counts."""
        infinite = np.isinf(weights)
        if infinite.any() or self._infinite.leaves[positions].any():
            self._infinite.set(positions, infinite)
            weights = np.where(infinite, 0.0, weights)
        self._sums.set(positions, weights)

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Positions by weight, with replacement. The total must be positive."""
        tree = self._infinite if self._infinite.total() else self._sums
        return tree.search(rng.random(count) * tree.total())


class _Levels:
    """Values in blocks of `WIDTH`, above them the sums of these blocks in blocks, up to a single block.

    Sums are brought up to date when they are needed: however many changes came before, a block is summed once.
    """

    def __init__(self, size: int, dtype: Any) -> None:
        blocks = -(-size // WIDTH)
        self._levels = [np.zeros((blocks, WIDTH), dtype)]
        while blocks > 1:
            blocks = -(-blocks // WIDTH)
            self._levels.append(np.zeros((blocks, WIDTH), dtype))
        self.leaves = self._levels[0].reshape(-1)
        self._changed = np.zeros(len(self._levels[0]), bool)
        self._stale = False

    def set(self, positions: np.ndarray, values: np.ndarray) -> None:
        self.leaves[positions] = values
        self._changed[positions // WIDTH] = True
        self._stale = True

    def total(self) -> float:
        self._sum_up()
        return float(self._levels[-1].sum())

    def search(self, targets: np.ndarray) -> np.ndarray:
        """Where on the line of all values, one after the other, these targets lie."""
        self._sum_up()
        rest, rows = targets, np.arange(len(targets))
        nodes = np.zeros(len(targets), np.int64)
        for level in reversed(self._levels):
            sums = np.cumsum(level[nodes], 1, dtype=np.float64)
            # Rounding may push a target past the last value: one that is zero is never found.
            rest = np.minimum(rest, np.nextafter(sums[:, -1], 0.0))
            children = (sums <= rest[:, None]).sum(1)
            rest = rest - np.where(children > 0, sums[rows, children - 1], 0.0)
            nodes = nodes * WIDTH + children
        return nodes

    def _sum_up(self) -> None:
        if not self._stale:
            return
        self._stale = False
        blocks = np.flatnonzero(self._changed)
        self._changed[blocks] = False
        for lower, upper in pairwise(self._levels):
            upper.reshape(-1)[blocks] = lower[blocks].sum(1)
            parents = blocks // WIDTH
            blocks = parents[np.diff(parents, prepend=-1) > 0]
