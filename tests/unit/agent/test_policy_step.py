"""Acting with the compiled agent, and that nothing is compiled twice."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import psutil
import pytest

from dreamfleet.agent import dreamer
from dreamfleet.agent.checks import check_spaces
from dreamfleet.agent.device.pinned_buffers import on_host
from dreamfleet.agent.device.placement import DeviceLayout, DeviceOptions
from dreamfleet.agent.dreamer import ComputeOptions, DreamerAgent, DreamerShape
from dreamfleet.core.errors import ConfigError, EnvError, SpaceMismatch
from dreamfleet.core.interfaces import Agent
from dreamfleet.core.spaces import Space
from dreamfleet.model.spaces import Spaces
from support import dreamer_reference as ref
from support.tiny_dreamer import CHOICE, PUSH, VECTOR, make_agent, make_data, tiny_options

ROWS = 2


def draw_obs(seed: int, first: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    obs = {key: space.sample(rng, (ROWS,)) for key, space in VECTOR.items()}
    flags = {key: np.zeros(ROWS, bool) for key in ("is_last", "is_terminal")}
    return {**obs, **flags, "is_first": np.full(ROWS, first), "reward": np.zeros(ROWS, np.float32)}


def draw_batch(seed: int = 0) -> dict[str, np.ndarray]:
    return make_data(tiny_options(), VECTOR, CHOICE, ROWS, 4, seed=seed)


@contextmanager
def counting_compilations() -> Iterator[list[str]]:
    found: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_follows_the_agent_protocol(agent: DreamerAgent) -> None:
    assert isinstance(agent, Agent)


class Computing:
    """An array of an update that is under way."""

    def is_ready(self) -> bool:
        return False


def test_acts_with_the_last_update_that_is_computed(agent: DreamerAgent) -> None:
    parameters = agent._policy_calls.parameters
    agent.take_held_back()
    before = parameters._now
    agent.train(agent.init_train(ROWS), draw_batch())
    following = parameters._next
    assert following
    parameters.stage([Computing(), *following[1:]])
    agent.policy(agent.init_policy(ROWS), draw_obs(0, True), "train")
    assert parameters._now is before
    parameters.stage(jax.block_until_ready(following))
    agent.policy(agent.init_policy(ROWS), draw_obs(0, True), "train")
    assert parameters._now is following
    agent.train(agent.init_train(ROWS), draw_batch())
    last = parameters._next
    agent.take_held_back()
    assert parameters._now is last


def latents_of_an_update(agent: DreamerAgent) -> tuple[dict[str, np.ndarray], set[str]]:
    agent.take_held_back()
    agent.train(agent.init_train(ROWS), draw_batch())
    assert agent._late is not None
    kinds = {latent.sharding.memory_kind for latent in agent._late[1].values()}
    return agent.take_held_back(), kinds


def test_latents_that_the_device_writes_to_the_host_are_the_same(
    agent: DreamerAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dreamer, "on_host", lambda sharding: sharding.with_memory_kind("pinned_host"))
    writing = make_agent(shape=DreamerShape(ROWS, 4, 0, 1, (ROWS,), 4), compute=agent.compute)
    writing.load(agent.save())
    fetched, there = latents_of_an_update(agent)
    written, here = latents_of_an_update(writing)
    assert (there, here) == ({"device"}, {"pinned_host"})
    assert fetched.keys() == written.keys() > {"stepid"}
    for key, value in fetched.items():
        np.testing.assert_array_equal(written[key], value)


@pytest.mark.parametrize(("backend", "memory"), [("cpu", "device"), ("gpu", "pinned_host")])
def test_a_gpu_writes_to_the_host_by_itself(backend: str, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    layout = DeviceLayout(DeviceOptions(), ROWS)
    found = on_host(layout.batch)
    assert found.memory_kind == memory
    assert found.spec == layout.batch.spec


def test_actions_and_latents_have_their_shapes(agent: DreamerAgent) -> None:
    _, actions, latents = agent.policy(agent.init_policy(ROWS), draw_obs(0, True), "train")
    assert actions.keys() == {"move"}
    assert all(CHOICE["move"].contains(row) for row in actions["move"])
    assert np.asarray(latents["dyn/deter"]).shape == (ROWS, 16)
    assert np.asarray(latents["dyn/stoch"]).dtype == np.uint8


def test_deter_follows_from_the_stored_latents_and_action(agent: DreamerAgent) -> None:
    """What replay stores of a step is all that the next one needs."""
    carry = agent.init_policy(ROWS)
    carry, before, stored = agent.policy(carry, draw_obs(1, True), "train")
    _, _, after = agent.policy(carry, draw_obs(2), "train")
    state = jax.tree.unflatten(agent._structure, agent.fetch_leaves())
    for row in range(ROWS):
        deter = ref.f64(stored["dyn/deter"])[row]
        stoch = np.eye(4)[np.asarray(stored["dyn/stoch"])[row]]
        expected = ref.core(state.world.dyn.core, deter, stoch, np.eye(5)[before["move"][row]])
        np.testing.assert_allclose(np.asarray(after["dyn/deter"], np.float32)[row], expected, atol=0.01)


def test_training_from_stored_latents_repeats_the_first_deter_seen_while_acting(agent: DreamerAgent) -> None:
    """With one row per environment the window is: a stored step, then the step after it."""
    carry = agent.init_policy(ROWS)
    data = draw_batch()
    steps = []
    for t in range(5):
        obs = draw_obs(10 + t, t == 0)
        carry, action, latents = agent.policy(carry, obs, "train")
        steps.append({**obs, **action, **{key: np.asarray(value) for key, value in latents.items()}})
    for key in ("position", "move", "is_first"):
        data[key] = np.stack([step[key] for step in steps], 1)
    for key in ("dyn/deter", "dyn/stoch"):
        data[key] = steps[0][key][:, None]
    state = agent.save()
    train_carry = agent.init_train(ROWS)
    agent.train(train_carry, data)
    _, outs, _ = agent.train(agent.init_train(ROWS), data)
    agent.load(state)
    trained = np.asarray(outs["replay"]["dyn/deter"], np.float32)[:, 0]
    np.testing.assert_allclose(trained, np.asarray(steps[1]["dyn/deter"], np.float32), atol=0.01)


def test_a_first_step_forgets_the_episode_before(agent: DreamerAgent) -> None:
    fresh, used = agent.init_policy(ROWS), agent.init_policy(ROWS)
    for seed in range(3):
        used, _, _ = agent.policy(used, draw_obs(seed, seed == 0), "train")
    one, two = (np.asarray(agent.policy(carry, draw_obs(9, True), "train")[2]["dyn/deter"]) for carry in (fresh, used))
    assert one.astype(np.float32).any()
    np.testing.assert_array_equal(one, two)


def test_random_keys_depend_on_the_number_of_the_call_alone(agent: DreamerAgent) -> None:
    """They are drawn ahead, for the next call; another one may come, when a snapshot is loaded."""
    obs = draw_obs(0, True)

    def act(call: int) -> np.ndarray:
        agent._policy_calls.acted = call
        _, _, latents = agent.policy(agent.init_policy(ROWS), obs, "train")
        return np.array(latents["dyn/stoch"])

    found = [act(call) for call in (7, 8, 9)]  # after the first, each is the one that was expected
    again = [act(call) for call in (9, 8, 7)]  # and none of these is
    for one, two in zip(found, reversed(again), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not all(np.array_equal(found[0], other) for other in found[1:])


def test_rows_of_the_table_are_independent(agent: DreamerAgent) -> None:
    table = agent.carry_table()
    before = np.array(table.data.deter)  # a view would follow the buffer that the policy reuses
    agent.policy(table.take(np.array([3, 1]), 4), draw_obs(0, True), "train")
    changed = np.abs(np.asarray(table.data.deter) - before).max(1) > 0
    assert changed.tolist() == [False, True, False, True]


def test_the_table_grows_and_keeps_its_rows(agent: DreamerAgent) -> None:
    table = agent.carry_table()
    agent.policy(table.take(np.array([0, 1]), 4), draw_obs(0, True), "train")
    kept = np.array(table.data.deter)
    rows = table.take(np.array([0, 5]), 6)
    assert len(table.data.deter) >= 6
    np.testing.assert_array_equal(np.asarray(table.data.deter)[:4], kept)
    agent.policy(rows, draw_obs(1, True), "train")


def test_nothing_is_compiled_after_the_first_calls(agent: DreamerAgent) -> None:
    table, carry = agent.carry_table(), agent.init_train(ROWS)
    stream = agent.stream(draw_batch(seed) for seed in range(100))

    def turn(step: int) -> None:
        nonlocal carry
        agent.policy(table.take(np.arange(ROWS), 4), draw_obs(step, step == 0), "train")
        carry, outs, metrics = agent.train(carry, next(stream))
        assert np.isfinite(metrics["opt/loss"])
        if "replay" in outs:
            assert np.asarray(outs["replay"]["dyn/deter"]).shape == (ROWS, 4, 16)

    turn(0)
    turn(1)
    with counting_compilations() as found:
        for step in range(2, 52):
            turn(step)
    assert len(found) == 0


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def train_for(agent: DreamerAgent, updates: int) -> None:
    table, carry, batch = agent.carry_table(), agent.init_train(ROWS), draw_batch()
    for step in range(updates):
        carry, _, metrics = agent.train(carry, batch)
        agent.policy(table.take(np.arange(ROWS), 4), draw_obs(step), "train")
    assert np.isfinite(metrics["opt/loss"])


def test_no_array_is_left_behind(agent: DreamerAgent) -> None:
    train_for(agent, 40)
    before, count = live_bytes(), len(jax.live_arrays())
    train_for(agent, 200)
    # Up to 16 batches may be waiting for their numbers.
    assert live_bytes() <= before + 16 * 10_000
    assert len(jax.live_arrays()) <= count + 16 * 15


@pytest.mark.slow
def test_memory_stays_flat_over_thousands_of_updates(agent: DreamerAgent) -> None:
    train_for(agent, 300)
    before, arrays = psutil.Process().memory_info().rss, live_bytes()
    train_for(agent, 2000)
    assert live_bytes() <= arrays + 16 * 10_000
    assert psutil.Process().memory_info().rss <= before + 32 * 2**20


def test_metrics_of_an_update_have_the_sizes_of_parameters_and_of_their_change(agent: DreamerAgent) -> None:
    carry = agent.init_train(ROWS)
    for seed in range(2):
        before = [leaf for name, leaf in agent.save().items() if name.startswith("world/")]
        carry, _, metrics = agent.train(carry, draw_batch(seed))
        after = [leaf for name, leaf in agent.save().items() if name.startswith("world/")]
        assert metrics["opt/param_rms"] == pytest.approx(rms(after), rel=1e-5)
        assert metrics["opt/update_rms"] == pytest.approx(
            rms([b - a for a, b in zip(before, after, strict=True)]), 0.02
        )


def rms(leaves: list[np.ndarray]) -> float:
    return float(np.sqrt((np.concatenate([leaf.ravel() for leaf in leaves]).astype(np.float64) ** 2).mean()))


def test_a_finite_source_is_streamed_to_its_end(agent: DreamerAgent) -> None:
    assert len(list(agent.stream(iter([draw_batch(0), draw_batch(1), draw_batch(2)])))) == 3


def test_acting_goes_on_while_training(agent: DreamerAgent) -> None:
    errors: list[BaseException] = []
    done = threading.Event()

    def act() -> None:
        table = agent.carry_table()
        try:
            step = 0
            while not done.is_set() or step < 20:
                agent.policy(table.take(np.arange(ROWS), 4), draw_obs(step, step == 0), "train")
                step += 1
        except BaseException as error:  # handed to the test
            errors.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    carry, state = agent.init_train(ROWS), agent.save()
    for seed in range(30):
        carry, _, _ = agent.train(carry, draw_batch(seed))
        if seed % 10 == 0:
            agent.load(state)
    done.set()
    thread.join(60)
    assert not errors


@pytest.mark.slow
def test_the_best_action_is_the_same_every_time() -> None:
    shape = DreamerShape(2, 4, 4, 1, (2,), 4)
    compute = ComputeOptions("bfloat16", best_eval_action=True)
    agent = make_agent(act=PUSH, shape=shape, compute=compute)
    runs = []
    for mode in ("eval", "eval", "train", "train"):
        _, actions, _ = agent.policy(agent.init_policy(ROWS), draw_obs(0, True), mode)
        runs.append(actions["push"])
    assert np.abs(runs[0]).max() < 1, "the mean of a bounded normal"
    assert not np.array_equal(runs[2], runs[3])


def test_a_batch_that_cannot_be_split_into_equal_parts_is_refused() -> None:
    with pytest.raises(ConfigError, match="equal parts"):
        make_agent(shape=DreamerShape(3, 4, 4, 1, (2,), 4), compute=ComputeOptions("float32", accumulate=2))


@pytest.mark.parametrize(
    ("obs", "act", "error", "words"),
    [
        (Spaces(reward=Space(np.float32)), CHOICE, EnvError, "nothing to learn from"),
        (VECTOR, Spaces(reset=Space(bool)), EnvError, "nothing to choose"),
        (Spaces(x=Space(np.float32, (0,))), CHOICE, SpaceMismatch, "no element"),
        (VECTOR, Spaces(move=Space(np.int32, (), 0, 1)), SpaceMismatch, "one choice"),
        (Spaces(x=Space(np.int32, (2,), 0, 2**15 + 1)), CHOICE, SpaceMismatch, "'x' has 65538 classes in all.*65536"),
        (VECTOR, Spaces(move=Space(np.int32, (2,), 0, 2**15 + 1)), SpaceMismatch, "'move' has 65538 choices in all"),
    ],
)
def test_spaces_that_cannot_work_are_refused(obs: Spaces, act: Spaces, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_spaces(obs, act)
