"""Running statistics of returns."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import dreamer_reference as ref
from dreamfleet.core.hyperparameters import DreamerOptions, NormalizerOptions
from dreamfleet.model.normalize import NormState, statistics, update

RETNORM = DreamerOptions().retnorm


def test_percentiles_are_averaged_from_zero_without_correction() -> None:
    rng = np.random.default_rng(0)
    state, low, high = NormState.zero(), 0.0, 0.0
    for step in range(5):
        values = (step + 1) * 40 * rng.standard_normal((15, 7)).astype(np.float32)
        state = update(RETNORM, state, jnp.asarray(values))
        low = 0.99 * low + 0.01 * ref.percentile(values, 5)
        high = 0.99 * high + 0.01 * ref.percentile(values, 95)
        np.testing.assert_allclose(state, [low, high], rtol=1e-5)
    offset, scale = statistics(RETNORM, state)
    np.testing.assert_allclose([offset, scale], [low, max(1.0, high - low)], rtol=1e-5)
    assert scale > 1


def test_small_returns_are_not_blown_up() -> None:
    state = update(RETNORM, NormState.zero(), jnp.linspace(-1.0, 1.0, 101))
    assert float(statistics(RETNORM, state)[1]) == 1.0
    assert float(statistics(RETNORM, NormState.zero())[1]) == 1.0


def test_mean_and_deviation() -> None:
    options = NormalizerOptions("meanstd", rate=1.0)
    offset, scale = statistics(options, update(options, NormState.zero(), jnp.asarray([1.0, 3.0, 5.0, 7.0])))
    assert float(offset) == 4.0
    assert float(scale) == pytest.approx(np.sqrt(5.0), rel=1e-5)


def test_none_changes_nothing() -> None:
    options = NormalizerOptions()
    state = update(options, NormState.zero(), jnp.asarray([100.0]))
    assert [float(x) for x in (*state, *statistics(options, state))] == [0, 0, 0, 1]
