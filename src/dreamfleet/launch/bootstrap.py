"""How far a mean can be trusted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95


def bootstrap(values: Sequence[float]) -> list[float]:
    """Where the mean of as many values lies in 95% of the samples drawn from these, with replacement."""
    array = np.asarray(values, np.float64)
    draws = np.random.default_rng(0).integers(0, len(array), (RESAMPLES, len(array)))
    low, high = np.quantile(array[draws].mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(low), float(high)]
