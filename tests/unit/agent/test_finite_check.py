"""Numbers that are not finite stop training and leave their batch behind."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.agent.dreamer import DreamerAgent
from dreamfleet.agent.finite_check import MAX_BEHIND, FiniteCheck
from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.core.errors import NonFinite
from support.tiny_dreamer import CHOICE, VECTOR, make_data, tiny_options


def test_finite_numbers_pass(tmp_path: Path) -> None:
    finite_check = FiniteCheck(["a", "b"], tmp_path)
    for _ in range(3 * MAX_BEHIND):
        finite_check.add(jnp.ones(2), dict)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_bad_number_is_named_and_its_batch_kept(tmp_path: Path, value: float) -> None:
    finite_check = FiniteCheck(["the loss rew", "the loss con", "the gradient of w"], tmp_path)
    finite_check.add(jnp.ones(3), lambda: {"x": np.asarray([1.0])})
    with pytest.raises(NonFinite, match=r"the loss con and 1 others.*nonfinite-2\.safetensors"):
        # The array may not have arrived at once: later updates look again.
        for x in (2.0, 3.0, 4.0):
            numbers = jnp.asarray([1.0, value, value]) if x == 2.0 else jnp.ones(3)
            numbers.block_until_ready()
            finite_check.add(numbers, lambda x=x: {"x": np.asarray([x])})
    assert load_arrays(tmp_path / "nonfinite-2.safetensors")["x"].tolist() == [2.0]


def test_without_a_folder_the_error_comes_all_the_same() -> None:
    finite_check = FiniteCheck(["the loss rew"], None)
    numbers = jnp.asarray([jnp.nan])
    numbers.block_until_ready()
    with pytest.raises(NonFinite, match="the loss rew"):
        for _ in range(2):
            finite_check.add(numbers, dict)


class Late:
    """Numbers of an update that the device is still at."""

    def __init__(self, *values: float) -> None:
        self._values = values

    def is_ready(self) -> bool:
        return False

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.array(self._values, np.float32)


def test_draining_waits_for_numbers_that_have_not_arrived(tmp_path: Path) -> None:
    finite_check = FiniteCheck(["the loss rew"], tmp_path)
    for value in (1.0, np.nan, 2.0):
        finite_check.add(Late(value), lambda: {"x": np.ones(1)})
    with pytest.raises(NonFinite, match=r"update 2 since the start is not finite in the loss rew: .*nonfinite-2"):
        finite_check.drain()
    finite_check.drain()  # the last one is finite


def test_an_agent_is_not_saved_after_an_update_that_is_not_finite(agent: DreamerAgent) -> None:
    saved = agent.save()
    agent._finite_check = FiniteCheck(agent._health_names, None)
    batch = make_data(tiny_options(), VECTOR, CHOICE, 2, 4)
    batch["reward"][1, 2] = np.nan
    try:
        agent.train(agent.init_train(2), batch)
        with pytest.raises(NonFinite, match="update 1 since the start is not finite in the loss"):
            agent.save()
    finally:
        agent._finite_check = FiniteCheck(agent._health_names, None)
        agent.load(saved)


@pytest.mark.parametrize(("key", "loss"), [("reward", "the loss re(w|pval)"), ("position", "the loss")])
def test_a_damaged_batch_raises_and_is_written(agent: DreamerAgent, tmp_path: Path, key: str, loss: str) -> None:
    saved = agent.save()
    agent._finite_check = FiniteCheck(agent._health_names, tmp_path)
    batch = make_data(tiny_options(), VECTOR, CHOICE, 2, 4)
    batch["is_first"][:] = False
    batch[key][1, 2] = np.nan
    carry = agent.init_train(2)
    try:
        with pytest.raises(NonFinite, match=loss):
            for _ in range(MAX_BEHIND + 2):
                carry, _, _ = agent.train(carry, batch)
    finally:
        agent._finite_check = FiniteCheck(agent._health_names, None)
        agent.load(saved)
    kept = load_arrays(tmp_path / "nonfinite-1.safetensors")
    assert np.isnan(kept[key][1, 2]).all()
    assert {"move", "reward", "is_first", "dyn/deter", "consec"} <= set(kept)
