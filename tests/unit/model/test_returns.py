"""The lambda return against the plain recursion."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.model.returns import lambda_return
from support import dreamer_reference as ref


def compute(
    reward: np.ndarray, boot: np.ndarray, last: np.ndarray, term: np.ndarray, disc: float, lam: float
) -> np.ndarray:
    live, keep = disc * (1 - term), lam * (1 - last)
    return np.asarray(lambda_return(*(jnp.asarray(x, jnp.float32) for x in (reward, boot, live, keep))))


@pytest.mark.parametrize("steps", [2, 3, 5, 16, 64])
def test_equals_the_recursion_with_ends_of_both_kinds(steps: int) -> None:
    rng = np.random.default_rng(steps)
    reward, boot = rng.standard_normal((2, steps, 4))
    last = (rng.random((steps, 4)) < 0.3).astype(float)
    term = last * (rng.random((steps, 4)) < 0.5)
    found = compute(reward, boot, last, term, 1 - 1 / 333, 0.95)
    args = (reward.T, boot.T, last.T, term.T)
    expected = np.stack([ref.lambda_return(*row, 1 - 1 / 333, 0.95) for row in zip(*args, strict=True)], 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_worked_example() -> None:
    """R_2 = 3 + 0.5 * 40 = 23; R_1 = 2 + 0.5 * (0.5 * 30 + 0.5 * 23) = 15.25; R_0 = 1 + 0.5 * (10 + 7.625) = 9.8125."""
    reward, boot = np.array([9.0, 1, 2, 3]), np.array([9.0, 20, 30, 40])
    none = np.zeros(4)
    assert compute(reward, boot, none, none, 0.5, 0.5).tolist() == [9.8125, 15.25, 23.0]


def test_after_a_terminal_step_nothing_counts() -> None:
    reward, boot = np.array([0.0, 1, 5, 7]), np.array([100.0, 100, 100, 100])
    end = np.array([0.0, 1, 0, 0])
    assert compute(reward, boot, end, end, 0.9, 0.95)[0] == 1.0


def test_at_a_truncation_the_value_stands_in() -> None:
    reward, boot = np.array([0.0, 1, 5, 7]), np.array([0.0, 50, 100, 100])
    cut = np.array([0.0, 1, 0, 0])
    assert compute(reward, boot, cut, np.zeros(4), 0.9, 0.95)[0] == pytest.approx(1 + 0.9 * 50)
