"""Running statistics of returns."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.core.hyperparameters import DreamerOptions, NormalizerOptions
from dreamfleet.model.normalize import NormState, statistics, update
from support import dreamer_reference as ref

RETNORM = DreamerOptions().retnorm


def test_percentiles_are_averaged_from_zero_without_correction() -> None:
    rng = np.random.default_rng(0)
    state, low, high = NormState.zero(), 0.0, 0.0
    for step in range(5):
        values = (step + 1) * 40 * rng.standard_normal((15, 7)).astype(np.float32)
        state = update(RETNORM, state, jnp.asarray(values))
        low = 0.99 * low + 0.01 * ref.percentile(values, 5)
        high = 0.99 * high + 0.01 * ref.percentile(values, 95)
        np.testing.assert_allclose(state[:2], [low, high], rtol=1e-5)
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
    assert [float(x) for x in (*state[:2], *statistics(options, state))] == [0, 0, 0, 1]


@pytest.mark.parametrize("impl", ["perc", "meanstd"])
def test_statistics_that_are_corrected_equal_the_float64_reference_from_the_start(impl: str) -> None:
    options = NormalizerOptions(impl, rate=0.05)
    rng = np.random.default_rng(0)
    state, reference = NormState.initial(options), ref.Normalizer(options)
    np.testing.assert_allclose(statistics(options, state), reference.statistics())  # of nothing yet
    for step in range(6):
        values = (7 + 3 * rng.standard_normal((15, 7)) * (step + 1)).astype(np.float32)
        state = update(options, state, jnp.asarray(values))
        reference.update(values)
        offset, scale = statistics(options, state)
        np.testing.assert_allclose([offset, scale], reference.statistics(), rtol=1e-4)
        if step == 0 and impl == "meanstd":  # what they are of, and no twentieth of it
            np.testing.assert_allclose([offset, scale], [values.mean(), values.std()], rtol=1e-4)


def test_a_report_reads_corrected_statistics_as_they_are() -> None:
    """It moves nothing, by a rate of zero."""
    options = NormalizerOptions("meanstd")
    state = update(options, NormState.initial(options), jnp.asarray([1.0, 3.0]))
    still = replace(options, rate=0.0)
    moved = update(still, state, jnp.asarray([50.0]))
    np.testing.assert_allclose(statistics(still, moved), [2.0, 1.0], rtol=1e-4)


def test_returns_alone_are_not_corrected_by_default() -> None:
    options = DreamerOptions()
    assert [getattr(options, name).debias for name in ("retnorm", "valnorm", "advnorm")] == [False, True, True]
    assert NormState.initial(RETNORM).weight is None
