"""How far a mean can be trusted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95


def bootstrap(values: Sequence[float]) -> list[float]:
    """Return the interval of the mean in 95% of the samples of this size, drawn from these with replacement."""
    return _middle(_means(values, np.random.default_rng(0)))


def bootstrap_difference(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """As `bootstrap`, for how far the mean of these lies above the mean of the others."""
    random = np.random.default_rng(0)
    return _middle(_means(values, random) - _means(others, random))


def _means(values: Sequence[float], random: np.random.Generator) -> np.ndarray:
    array = np.asarray(values, np.float64)
    draws = random.integers(0, len(array), (RESAMPLES, len(array)))
    means: np.ndarray = array[draws].mean(1)
    return means


def _middle(samples: np.ndarray) -> list[float]:
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(low), float(high)]
