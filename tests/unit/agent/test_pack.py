"""What travels packed arrives as it was sent."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from dreamfleet.agent import policy_calls
from dreamfleet.agent.device import pinned_buffers as buffers
from dreamfleet.agent.device.batches import LARGE, SMALL, BatchForm
from dreamfleet.agent.device.pack import Packing, WordPacking
from dreamfleet.agent.device.pinned_buffers import IN_OWN_QUEUE, PinnedBuffer, PinnedBufferPool, is_usable
from dreamfleet.agent.device.placement import DeviceLayout, DeviceOptions
from dreamfleet.agent.device.policy_parameters import PolicyParameters
from dreamfleet.agent.dreamer import ComputeOptions, DreamerAgent, DreamerShape
from dreamfleet.agent.export.policy_file import BLOCK, keys_of_call
from dreamfleet.agent.train_step import Recipe
from dreamfleet.core.spaces import Space
from dreamfleet.model.spaces import Spaces
from support.tiny_dreamer import CHOICE, FLOAT32, VECTOR, make_data, make_world, tiny_options

ARRAYS = {
    "flags": np.array([True, False, True]),
    "image": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "number": np.array(-7, np.int32),
    "halves": np.array([[1.5, -2.25]], ml_dtypes.bfloat16),
    "floats": np.array([np.pi, -np.inf, 1e-38], np.float32),
    "none": np.zeros((0, 4), np.float32),
    "keys": np.array([[2**32 - 1, 1]], np.uint32),
}


def expect_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype, key
        np.testing.assert_array_equal(np.asarray(found[key]), value, err_msg=key)


def test_from_the_host_to_the_device_and_back() -> None:
    packing = Packing(ARRAYS)
    packed = packing.pack_on_host(ARRAYS)
    assert packed.nbytes == packing.size == sum(array.nbytes for array in ARRAYS.values())
    there = jax.jit(packing.unpack)(packed)
    expect_same(there, ARRAYS)
    back = np.asarray(jax.jit(packing.pack)(there))
    np.testing.assert_array_equal(back, packed)
    expect_same(packing.unpack_on_host(back), ARRAYS)


def test_what_is_packed_may_be_changed_at_once() -> None:
    value = np.ones(4, np.float32)
    packing = Packing({"x": value})
    packed = packing.pack_on_host({"x": value})
    value[:] = 2
    assert packing.unpack_on_host(packed)["x"].tolist() == [1, 1, 1, 1]


def test_an_array_of_another_shape_is_no_silent_mistake() -> None:
    packing = Packing({"x": np.zeros((4, 2), np.uint8)})
    with pytest.raises(ValueError, match=r"'x' has the shape \(1, 2\) instead of \(4, 2\)"):
        packing.pack_on_host({"x": np.zeros((1, 2), np.uint8)})
    with pytest.raises(TypeError, match="cast"):
        packing.pack_on_host({"x": np.full((4, 2), 0.5)})


def test_what_jax_has_no_dtype_for_arrives_in_the_next_smaller_one() -> None:
    arrays = {"count": np.array([-5, 2**31 - 1]), "value": np.array([1.5])}
    packing = Packing(arrays)
    found = jax.jit(packing.unpack)(packing.pack_on_host(arrays))
    assert (found["count"].dtype, found["count"].tolist()) == (np.int32, [-5, 2**31 - 1])
    assert (found["value"].dtype, found["value"].tolist()) == (np.float32, [1.5])


def test_words_hold_every_bit_of_16_and_32() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 96, np.uint32)
    bits[:4] = 0, 2**32 - 1, 0x7F800001, 0x0000FFFF  # a NaN with a payload among them
    words = bits.astype(np.uint16)
    arrays = [
        np.float32(np.pi),
        bits.view(np.float32).reshape(2, 3, 16),
        words.view(ml_dtypes.bfloat16).reshape(4, 24),
        np.zeros((0, 4), np.float32),
        bits.view(np.int32),
        words.view(np.float16),
    ]
    packing = WordPacking(arrays)
    packed = jax.jit(packing.pack)([jnp.asarray(array) for array in arrays])
    assert packed.nbytes == 2 * packing.size == sum(array.nbytes for array in arrays)
    assert (packed.shape, packed.dtype) == ((packing.size,), np.uint16)
    for found, wanted in zip(jax.jit(packing.unpack)(packed), arrays, strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert np.asarray(found).tobytes() == wanted.tobytes()


def test_words_refuse_other_elements() -> None:
    arrays = [np.zeros(2, np.uint8), np.zeros(2, np.float32), np.zeros(2)]
    with pytest.raises(TypeError, match="16 or 32 bits can be packed into words, not float64, uint8"):
        WordPacking(arrays)


class Elsewhere:
    """A layout whose policy has a client of its own."""

    def __init__(self) -> None:
        self.policy = jax.local_devices()[0]
        self.same_device = False
        self.passed: list[jax.Array] = []

    def to_policy(self, array: jax.Array) -> jax.Array:
        self.passed.append(array)
        return array


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_parameters_for_another_client_are_one_array(dtype: Any) -> None:
    world = make_world(tiny_options(), VECTOR, CHOICE)
    near = PolicyParameters(world, dtype, DeviceLayout(DeviceOptions(), 1))
    layout: Any = Elsewhere()
    far = PolicyParameters(world, dtype, layout)
    copy = jax.jit(far.copy)(world)
    far.activate(copy)
    (packed,) = far.current()
    assert packed is layout.passed[0] is copy[0]
    assert [(packed.shape, packed.dtype)] == [(spec.shape, spec.dtype) for spec in far.spec]
    wanted = near.actor(near.copy(world))
    for one, two in zip(jax.tree.leaves(jax.jit(far.actor)([packed])), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)


def make_form(side: int, batch: int = 2) -> tuple[BatchForm, Recipe]:
    obs = Spaces(**VECTOR, image=Space(np.uint8, (side, side, 3)))
    recipe = Recipe(tiny_options(), FLOAT32, obs, CHOICE)
    return BatchForm(batch, 4, recipe, DeviceLayout(DeviceOptions(), batch)), recipe


@pytest.mark.parametrize(("side", "sent"), [(4, {SMALL}), (160, {"image", SMALL})])
def test_small_arrays_of_a_batch_travel_together(side: int, sent: set[str]) -> None:
    form, recipe = make_form(side)
    assert (2 * 5 * side * side * 3 >= LARGE) == ("image" in sent)
    batch = make_data(tiny_options(), recipe.obs_space, CHOICE, 2, 4)
    there = form.put({**batch, "unknown to the agent": np.zeros(2)})
    assert there.data.keys() == form.spec.keys() == sent
    assert there.stepid is batch["stepid"]
    expect_same(jax.jit(form.unpack)(there.data), there.arrays())
    expect_same(there.arrays(), {key: value for key, value in batch.items() if key != "stepid"})


class Kept(DreamerAgent):
    """An agent that never trains: its update takes long to compile."""

    def _compile(self) -> None:
        self._metric_names, self._health_names = [], []


def act_some(seed: int = 0) -> tuple[list[np.ndarray], DreamerAgent]:
    shape = DreamerShape(2, policy_rows=(2,), slots=4)
    agent = Kept(VECTOR, {**CHOICE, "reset": Space(bool)}, tiny_options(), shape, ComputeOptions("float32"), seed)
    table, rng, found = agent.carry_table(), np.random.default_rng(seed), []
    for step in range(6):
        obs = {"position": rng.standard_normal((2, 3)).astype(np.float32), "is_first": np.full(2, step == 0)}
        _, actions, latents = agent.policy(table.take(np.array([step % 2, 3]), 4), obs, "train")
        found += [np.array(value) for value in (*actions.values(), *latents.values())]
    return found, agent


def test_observations_in_pinned_memory_lead_to_the_same_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, _ = act_some()
    monkeypatch.setattr(
        policy_calls, "pinned_memory", lambda device: SingleDeviceSharding(device, memory_kind="pinned_host")
    )
    told = []
    compile_now = DreamerAgent._compile_now
    monkeypatch.setattr(
        DreamerAgent, "_compile_now", lambda *args, **options: told.append(options) or compile_now(*args, **options)
    )
    found, agent = act_some()
    for one, two in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, two)
    assert told[-1]["compiler_options"] == IN_OWN_QUEUE, "else its copies wait for updates"
    (compiled,) = agent._policy_calls._compiled.values()
    assert len(compiled.buffers._free) == 1, "one call at a time uses one place again and again"


def test_calls_at_the_same_time_have_places_of_their_own() -> None:
    buffers = PinnedBufferPool(4, SingleDeviceSharding(jax.local_devices()[0], memory_kind="pinned_host"))
    one, two = buffers.take(), buffers.take()
    one.bytes[:], two.bytes[:] = 1, 2
    assert (np.asarray(one.array).tolist(), np.asarray(two.array).tolist()) == ([1] * 4, [2] * 4)
    buffers.give_back(one)
    assert buffers.take() is one


def test_what_is_written_later_is_seen_by_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = jax.local_devices()[0]
    pinned = SingleDeviceSharding(device, memory_kind="pinned_host")
    assert is_usable(pinned, device)
    monkeypatch.setattr(
        PinnedBufferPool, "take", lambda self: PinnedBuffer(jnp.zeros(64, jnp.uint8), np.zeros(64, np.uint8))
    )
    assert not is_usable(pinned, device), "a copy is of no use"


@pytest.mark.parametrize(
    ("name", "value"), [("IN_OWN_QUEUE", {"xla_no_such_option": "x"}), ("BESIDE", "ENTRY")], ids=["refused", "ignored"]
)
def test_pinned_memory_is_left_alone_where_the_compiler_copies_as_it_likes(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = jax.local_devices()[0]
    pinned = SingleDeviceSharding(device, memory_kind="pinned_host")
    assert is_usable(pinned, device)
    monkeypatch.setattr(buffers, name, value)  # whatever is in every compiled function, for the second
    assert not is_usable(pinned, device)


def test_batches_for_reports_arrive_though_the_agent_makes_none() -> None:
    shape = DreamerShape(2, 4, report_length=0, policy_rows=(2,), slots=4)
    agent = Kept(VECTOR, {**CHOICE, "reset": Space(bool)}, tiny_options(), shape, ComputeOptions("float32"))
    batch = make_data(tiny_options(), VECTOR, CHOICE, 2, 3)
    (sent,) = agent.stream(iter([batch]))
    np.testing.assert_array_equal(sent.arrays()["position"], batch["position"])
    carry = agent.init_report(2)
    assert agent.report(carry, sent) == (carry, {})


def test_parameters_stay_as_long_as_a_call_reads_them() -> None:
    """They may be memory of another client, which would use it anew."""
    _, agent = act_some()
    obs = {"position": np.zeros((2, 3), np.float32), "is_first": np.ones(2, bool)}
    fetch = agent.start_policy(agent.init_policy(2), obs, "train")
    parameters = agent._policy_calls.parameters
    read = weakref.ref(parameters._now[0])
    parameters._now = list(parameters._next or parameters._now[:0])
    gc.collect()
    assert read() is not None
    fetch()


def test_random_keys_depend_on_the_seed_and_the_number_of_the_call_alone() -> None:
    calls = [(seed, call) for seed in (0, 1) for call in (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK)]
    keys = [keys_of_call(seed, call, 4) for seed, call in calls]
    assert {key.shape for key in keys} == {(2, 4)}
    assert len({row.tobytes() for key in keys for row in key}) == 2 * len(calls)
    for (seed, call), key in list(zip(calls, keys, strict=True))[::-1]:
        np.testing.assert_array_equal(keys_of_call(seed, call, 4), key)
