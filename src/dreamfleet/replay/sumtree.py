"""A tree of sums: draws positions by weight and changes weights in logarithmic time, for whole batches at once."""

from __future__ import annotations

import numpy as np


class SumTree:
    """Weights of positions 0 to `size - 1`, zero at first.

    Infinite weights are kept apart as counts in a second tree: as long as there are any, one of them is drawn, all of
    them alike. All methods take arrays of positions, so that a batch costs a few NumPy calls per level and no loop over
    rows.
    """

    def __init__(self, size: int) -> None:
        self._leaves = 1 << max(0, size - 1).bit_length()
        self._sums = np.zeros(2 * self._leaves, np.float64)
        self._infinite = np.zeros(2 * self._leaves, np.int64)

    @property
    def total(self) -> float:
        return float("inf") if self._infinite[1] else float(self._sums[1])

    def get(self, positions: np.ndarray) -> np.ndarray:
        nodes = positions + self._leaves
        return np.where(self._infinite[nodes] > 0, np.inf, self._sums[nodes])

    def set(self, positions: np.ndarray, weights: np.ndarray) -> None:
        """Of a position given twice, the last weight counts."""
        nodes = np.asarray(positions, np.int64) + self._leaves
        infinite = np.isinf(weights)
        self._sums[nodes] = np.where(infinite, 0.0, weights)
        self._infinite[nodes] = infinite
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            left = 2 * nodes
            self._sums[nodes] = self._sums[left] + self._sums[left + 1]
            self._infinite[nodes] = self._infinite[left] + self._infinite[left + 1]

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Positions by weight, with replacement. The total must be positive."""
        tree: np.ndarray = self._infinite if self._infinite[1] else self._sums
        rest = rng.random(count) * tree[1]
        nodes = np.ones(count, np.int64)
        while count and nodes[0] < self._leaves:
            left = 2 * nodes
            weight = tree[left]
            # Rounding may push a draw past the last weight: a branch without any is never taken.
            right = (rest >= weight) & (tree[left + 1] > 0)
            rest = np.where(right, rest - weight, rest)
            nodes = left + right
        return nodes - self._leaves
