"""The arrays of training, joined and apart."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dreamfleet.agent.device import packed_state as module
from dreamfleet.agent.device.packed_state import PackedState
from dreamfleet.agent.device.placement import AXIS, DeviceLayout, DeviceOptions
from dreamfleet.agent.dreamer import DreamerAgent

LARGE = 10


def make_arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes: list[tuple[int, ...]] = [(2, 3), (), (4, 5), (9,), (), (10,), (0, 3)]
    numbers = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    numbers[1] = np.array(7, np.int32)
    numbers[4] = np.array(-3, np.int32)
    return numbers


def expect_same(found: Any, wanted: Any) -> None:
    for one, two in zip(found, wanted, strict=True):
        assert (one.shape, one.dtype) == (two.shape, two.dtype)
        np.testing.assert_array_equal(one, two)


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> DeviceLayout:
    monkeypatch.setattr(module, "LARGE", LARGE)
    return DeviceLayout(DeviceOptions(), 2)


def test_small_arrays_of_a_type_are_one_and_come_back_as_they_were(layout: DeviceLayout) -> None:
    arrays = make_arrays()
    packed_state = PackedState(arrays, layout)
    packed = jax.jit(packed_state.pack)(arrays)
    assert [(array.shape, array.dtype) for array in packed] == [
        ((6 + 9 + 0,), np.float32),
        ((2,), np.int32),
        ((4, 5), np.float32),
        ((10,), np.float32),
    ]
    assert len(packed_state.shardings) == len(packed)
    expect_same(jax.jit(packed_state.unpack)(packed), arrays)
    expect_same(packed_state.fetch(packed), arrays)
    assert all(isinstance(array, np.ndarray) for array in packed_state.fetch(packed))
    put = packed_state.put(arrays)
    expect_same(put, packed)
    assert [array.sharding for array in put] == packed_state.shardings


def test_an_array_that_is_split_over_devices_stays_by_itself(
    layout: DeviceLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = make_arrays()
    apart = NamedSharding(layout.mesh, PartitionSpec(AXIS))
    monkeypatch.setattr(
        layout, "of_state", lambda spec: [apart if array.shape == (2, 3) else layout.whole for array in spec]
    )
    packed_state = PackedState(arrays, layout)
    packed = jax.jit(packed_state.pack)(arrays)
    assert [array.shape for array in packed] == [(9,), (2,), (2, 3), (4, 5), (10,)]
    assert packed_state.shardings[2] == apart
    expect_same(packed_state.fetch(packed), arrays)


def test_an_update_changes_joined_arrays_where_they_are(layout: DeviceLayout) -> None:
    arrays = make_arrays()
    packed_state = PackedState(arrays, layout)
    update = jax.jit(
        lambda packed: packed_state.pack([array + jnp.ones_like(array) for array in packed_state.unpack(packed)]),
        donate_argnums=0,
        out_shardings=packed_state.shardings,
    )
    before = packed_state.put(arrays)
    after = update(before)
    assert all(array.is_deleted() for array in before)
    expect_same(packed_state.fetch(after), [array + np.ones_like(array) for array in arrays])


def test_an_agent_hands_few_arrays_to_an_update(agent: DreamerAgent) -> None:
    assert len(agent.names) > 100
    assert len(agent._packed) == 2, "numbers and counters"
