"""One update as a pure function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.agent import train_step as training
from dreamfleet.agent.train_step import LossScale, Recipe, TrainState, cut_context, init_carry, init_state, train_step
from dreamfleet.core.hyperparameters import NormalizerOptions, OptimizerOptions, SlowValueOptions
from dreamfleet.model.dreamer_model import NormInputs, Norms, Outcome, move_norms
from dreamfleet.model.normalize import NormState
from dreamfleet.model.optimizer import make_optimizer
from dreamfleet.model.rssm import State
from support import dreamer_reference as ref
from support.tiny_dreamer import CHOICE, VECTOR, make_data, make_recipe, make_world, tiny_options

OPTIONS = tiny_options(opt=OptimizerOptions(lr=1e-3, warmup=4))
ROWS, STEPS = 4, 3


def make_batch(seed: int = 0, **changes: Any) -> dict[str, jax.Array]:
    data = {**make_data(OPTIONS, VECTOR, CHOICE, ROWS, STEPS, seed=seed), **changes}
    data.pop("stepid")
    return jax.tree.map(jnp.asarray, data)


@cache
def compiled(dtype: Any = jnp.float32, accumulate: int = 1) -> tuple[Recipe, TrainState, Callable[..., Any]]:
    recipe = make_recipe(OPTIONS, dtype=dtype, accumulate=accumulate)
    state = jax.jit(lambda key: init_state(key, recipe))(jax.random.key(0))

    def step(state: TrainState, data: Any) -> Any:
        found = train_step(state, init_carry(ROWS, recipe), data, jax.random.key(1), recipe)
        return tuple(found)[:-1]

    return recipe, state, jax.jit(step)


def leaves_equal(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_the_first_update_changes_statistics_but_no_parameter() -> None:
    _, state, step = compiled()
    new, *_ = step(state, make_batch())
    assert leaves_equal(new.world, state.world)
    # The slow critic was a copy, and the critic has not moved.
    for a, b in zip(jax.tree.leaves(new.slow), jax.tree.leaves(state.slow), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert int(new.updates) == 1
    moments = [np.asarray(x) for x in jax.tree.leaves(new.opt)]
    assert sum(bool(x.any()) for x in moments) > 10


def test_a_slow_critic_that_follows_every_other_update_begins_with_the_first() -> None:
    recipe, state, _ = compiled()
    recipe = replace(recipe, options=replace(recipe.options, slowvalue=SlowValueOptions(rate=0.25, every=2)))
    state = eqx.tree_at(lambda state: state.slow, state, jax.tree.map(lambda leaf: leaf + 1, state.slow))

    @jax.jit
    def step(state: TrainState, data: Any) -> TrainState:
        return train_step(state, init_carry(ROWS, recipe), data, jax.random.key(1), recipe).state

    moved = []
    for _ in range(4):
        new = step(state, make_batch())
        moved.append(not leaves_equal(new.slow, state.slow))
        state = new
    assert moved == [True, False, True, False]


def test_later_updates_move_parameters_statistics_and_the_slow_critic() -> None:
    _, first, step = compiled()
    state = first
    for seed in range(3):
        before = state
        state, *_ = step(state, make_batch(seed))
    for name in ("enc", "dyn", "dec", "rew", "con", "pol", "val"):
        assert not leaves_equal(getattr(state.world, name), getattr(first.world, name)), name
    assert float(state.norms.ret.second) != 0.0
    slow, critic, old = (jax.tree.leaves(x) for x in (state.slow, state.world.val, before.slow))
    for a, b, c in zip(slow, critic, old, strict=True):
        expected = 0.02 * np.asarray(b, np.float64) + 0.98 * np.asarray(c, np.float64)
        np.testing.assert_allclose(a, expected, rtol=1e-5, atol=1e-9)


def test_latents_of_every_trained_step_come_back_as_replay_stores_them() -> None:
    _, state, step = compiled()
    _, carry, latents, _, _ = step(state, make_batch())
    assert latents["dyn/deter"].shape == (ROWS, STEPS, 16)
    assert latents["dyn/deter"].dtype == jnp.bfloat16
    assert latents["dyn/stoch"].shape == (ROWS, STEPS, 3)
    assert latents["dyn/stoch"].dtype == jnp.uint8
    np.testing.assert_array_equal(carry.state.deter.astype(jnp.bfloat16), latents["dyn/deter"][:, -1])
    np.testing.assert_array_equal(carry.state.stoch.argmax(-1), latents["dyn/stoch"][:, -1])


def test_the_model_loss_of_every_trained_step_is_its_priority_where_replay_draws_by_it() -> None:
    recipe, state, step = compiled()
    assert "priority" not in step(state, make_batch())[2]
    recipe = replace(recipe, priorities=True)

    @jax.jit
    def prioritizing(state: TrainState, data: Any) -> Any:
        found = train_step(state, init_carry(ROWS, recipe), data, jax.random.key(1), recipe)
        return found.latents, found.metrics

    latents, metrics = prioritizing(state, make_batch())
    priority = ref.f64(latents["priority"])
    assert priority.shape == (ROWS, STEPS)
    mean = sum(float(metrics[f"loss/{name}"]) for name in ("dyn", "rep", "rec/position"))
    assert priority.mean() == pytest.approx(mean, rel=1e-5)
    data = make_batch()
    other = {**data, "position": data["position"].at[2, 3].add(50.0)}  # the third step trained on in this row
    changed = ref.f64(prioritizing(state, other)[0]["priority"]) - priority
    assert changed[2, 2] > 1
    np.testing.assert_allclose(changed[[0, 1, 3]], 0, atol=1e-5)


def test_the_carry_ends_with_the_last_action_of_the_chunk() -> None:
    _, state, step = compiled()
    data = make_batch()
    _, carry, *_ = step(state, data)
    assert carry.action["move"].tolist() == data["move"][:, -1].tolist()


def test_a_fresh_window_starts_from_stored_latents_and_a_later_chunk_from_the_carry() -> None:
    recipe = make_recipe(OPTIONS)
    carry = init_carry(ROWS, recipe)
    carry = carry._replace(
        state=jax.tree.map(lambda x: x + 0.5, carry.state), action={"move": jnp.full(ROWS, 4, jnp.int32)}
    )
    data = make_batch(consec=np.array([0, 1, 0, 2], np.int32))
    start, batch = cut_context(carry, data, recipe)
    for row, fresh in enumerate([True, False, True, False]):
        stored = data["dyn/deter"][row, 0].astype(jnp.float32) if fresh else carry.state.deter[row]
        np.testing.assert_array_equal(start.deter[row], stored)
        classes = start.stoch[row].argmax(-1).tolist() if fresh else None
        assert classes == (data["dyn/stoch"][row, 0].tolist() if fresh else None)
        assert int(batch.last_actions["move"][row, 0]) == (int(data["move"][row, 0]) if fresh else 4)


def test_without_context_a_window_starts_from_zero() -> None:
    recipe = make_recipe(OPTIONS, context=0)
    data = jax.tree.map(jnp.asarray, make_data(OPTIONS, VECTOR, CHOICE, ROWS, STEPS, context=0))
    carry = jax.tree.map(lambda x: x + 1, init_carry(ROWS, recipe))
    start, batch = cut_context(carry, data, recipe)
    assert not any(np.asarray(x).any() for x in start)
    assert batch.reward.shape == (ROWS, STEPS)
    assert batch.last_actions["move"][:, 0].tolist() == [0] * ROWS


def test_the_same_update_gives_the_same_result_and_the_next_other_samples() -> None:
    _, state, step = compiled()
    once, again = step(state, make_batch()), step(state, make_batch())
    assert leaves_equal(once, again)
    later = step(once[0], make_batch())  # with the same parameters: the first update leaves them alone
    assert not np.array_equal(later[2]["dyn/stoch"], once[2]["dyn/stoch"])


def test_metrics_of_the_optimiser() -> None:
    _, state, step = compiled()
    _, _, _, metrics, health = step(state, make_batch())
    scales = {"rep": 0.1, "repval": 0.3}
    losses = {name[5:]: float(value) for name, value in metrics.items() if name.startswith("loss/")}
    total = sum(scales.get(name, 1.0) * loss for name, loss in losses.items())
    assert float(metrics["opt/loss"]) == pytest.approx(total, rel=1e-5)
    assert float(metrics["opt/updates"]) == 1
    count = sum(leaf.size for leaf in jax.tree.leaves(state.world))
    assert float(metrics["opt/grad_rms"]) == pytest.approx(float(metrics["opt/grad_norm"]) / count**0.5, rel=1e-5)
    grads = np.asarray(health)[len(losses) :]
    assert float(metrics["opt/grad_norm"]) == pytest.approx(
        float(np.sqrt((grads.astype(np.float64) ** 2).sum())), rel=1e-5
    )


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_sizes_of_parameters_and_of_the_update_that_led_to_them(decay: float) -> None:
    options = replace(OPTIONS, opt=OptimizerOptions(lr=0.1, warmup=2, wd=decay))
    recipe, optimizer, rng = make_recipe(options), make_optimizer(options.opt), np.random.default_rng(0)
    world = make_world(options)
    state = TrainState(world, world.val, Norms(*[NormState.zero()] * 3), optimizer.init(world), None, None)

    @jax.jit
    def step(state: TrainState, grads: Any) -> tuple[TrainState, Any]:
        updates, opt = optimizer.update(grads, state.opt, state.world)
        new = eqx.tree_at(lambda s: (s.world, s.opt), state, (eqx.apply_updates(state.world, updates), opt))
        return new, training.sizes(new, recipe)

    def rms(leaves: list[np.ndarray]) -> float:
        return float(np.sqrt((np.concatenate([leaf.ravel() for leaf in leaves]) ** 2).mean()))

    for update in range(3):
        grads = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), jnp.float32), state.world)
        new, found = step(state, grads)
        before, after = ([ref.f64(leaf) for leaf in jax.tree.leaves(s.world)] for s in (state, new))
        assert float(found["opt/param_rms"]) == pytest.approx(rms(after), rel=1e-5)
        change = rms([b - a for a, b in zip(before, after, strict=True)])
        assert (change > 0) == (update > 0), "the first update has a rate of zero"
        assert float(found["opt/update_rms"]) == pytest.approx(change, rel=1e-4)
        state = new


def test_accumulated_parts_move_the_running_statistics_once_by_all_of_them() -> None:
    """Against float64: percentiles are those of the whole batch, and the rate is that of one update."""
    options = replace(
        OPTIONS,
        retnorm=NormalizerOptions("perc", rate=0.2, debias=False),
        valnorm=NormalizerOptions("meanstd", rate=0.3),
        advnorm=NormalizerOptions("perc", rate=0.1),
    )
    recipe = make_recipe(options, accumulate=2)
    norms = Norms(*map(NormState.initial, (options.retnorm, options.valnorm, options.advnorm)))
    rows = np.random.default_rng(0).standard_normal((ROWS, STEPS)).astype(np.float32)
    rows[: ROWS // 2] *= 50  # its percentiles alone are far from those of all rows

    def compute(world: Any, norms: Norms, start: Any, batch: Any, key: Any) -> Any:
        """As a part of an update: nothing but what the statistics are of."""
        seen = NormInputs((batch,), (batch, 2 * batch), (batch + 3,))
        moved = move_norms(norms, seen, options)
        return world, Outcome({}, State(batch.T, batch.T), batch.T, moved, seen, {})

    found = jax.jit(lambda: training._accumulate(compute, jnp.ones(3), norms, rows, rows, jax.random.key(0), recipe))()
    for name, values in {"ret": [rows], "val": [rows, 2 * rows], "adv": [rows + 3]}.items():
        own = getattr(options, f"{name}norm")
        reference = ref.Normalizer(own)
        for each in values:
            reference.update(each)
        expected = [reference.first, reference.second, reference.weight][: 3 if own.debias else 2]
        state = [value for value in getattr(found[1].norms, name) if value is not None]
        np.testing.assert_allclose(state, expected, rtol=1e-4, err_msg=name)
    np.testing.assert_array_equal(found[1].model_loss, rows.T)


@pytest.mark.slow
def test_accumulated_gradients_are_the_mean_of_the_parts() -> None:
    recipe, state, _ = compiled()
    state = TrainState(
        make_world(OPTIONS), state.slow, Norms(*[NormState.zero()] * 3), state.opt, state.loss_scale, state.updates
    )
    key = jax.random.key(3)
    start, batch = cut_context(init_carry(ROWS, recipe), make_batch(), recipe)

    def gradients(accumulate: int) -> Callable[..., Any]:
        # Without running statistics no part depends on the one before.
        own = make_recipe(replace(OPTIONS, retnorm=NormalizerOptions()), accumulate=accumulate)
        return jax.jit(lambda start, batch, key: training._gradients(state, start, batch, key, own))

    whole, grads = gradients(2)(start, batch, key)
    one = gradients(1)
    parts = [
        one(*jax.tree.map(lambda x, half=half: x[half], (start, batch)), own_key)
        for half, own_key in zip((slice(0, 2), slice(2, 4)), jax.random.split(key, 2), strict=True)
    ]
    expected = jax.tree.map(lambda a, b: (a + b) / 2, parts[0][1], parts[1][1])
    size = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * size)
    for name, loss in whole.losses.items():
        assert float(loss) == pytest.approx(sum(float(part[0].losses[name]) for part in parts) / 2, rel=1e-5)
    both = np.concatenate([part[0].states.deter for part in parts], 1)
    np.testing.assert_allclose(whole.states.deter, both, rtol=1e-5, atol=1e-6)


def test_loss_scale_starts_high_for_float16_alone() -> None:
    assert float(LossScale.initial(jnp.float16).scale) == 1e4
    assert float(LossScale.initial(jnp.bfloat16).scale) == 1.0


def test_loss_scale_halves_on_overflow_doubles_after_a_thousand_good_steps_and_stays_in_range() -> None:
    scale = LossScale(jnp.float32(1000.0), jnp.int32(998))
    scale = scale.after(jnp.asarray(True))
    assert (float(scale.scale), int(scale.good)) == (1000.0, 999)
    scale = scale.after(jnp.asarray(True))
    assert (float(scale.scale), int(scale.good)) == (2000.0, 0)
    scale = LossScale(scale.scale, jnp.int32(7)).after(jnp.asarray(False))
    assert (float(scale.scale), int(scale.good)) == (1000.0, 0)
    most = LossScale(jnp.float32(9e4), jnp.int32(999)).after(jnp.asarray(True))
    least = LossScale(jnp.float32(1.5e-4), jnp.int32(0)).after(jnp.asarray(False))
    assert (float(most.scale), float(least.scale)) == (pytest.approx(1e5), pytest.approx(1e-4))


@pytest.mark.slow
def test_an_overflow_in_float16_halves_the_scale_and_changes_nothing_else() -> None:
    _, state, step = compiled(jnp.float16)
    small, huge = (
        TrainState(
            state.world, state.slow, state.norms, state.opt, LossScale(jnp.float32(scale), jnp.int32(3)), state.updates
        )
        for scale in (64.0, 1e30)
    )
    good, _, _, metrics, health = step(small, make_batch())
    assert np.isfinite(float(metrics["opt/grad_norm"]))
    assert (int(good.updates), int(good.loss_scale.good), float(good.loss_scale.scale)) == (1, 4, 64.0)
    new, _, _, metrics, health = step(huge, make_batch())
    assert not np.isfinite(float(metrics["opt/grad_norm"]))
    assert np.isfinite(np.asarray(health)).all(), "an overflow is expected and no reason to stop"
    for name in ("world", "slow", "norms", "opt"):
        assert leaves_equal(getattr(new, name), getattr(huge, name)), name
    assert float(new.loss_scale.scale) == pytest.approx(1e5)  # half, then clipped to the range
    assert int(new.loss_scale.good) == 0


def test_gradients_in_float16_do_not_depend_on_the_scale() -> None:
    _, state, step = compiled(jnp.float16)
    norms = []
    for scale in (64.0, 512.0):
        scaled = TrainState(
            state.world, state.slow, state.norms, state.opt, LossScale(jnp.float32(scale), jnp.int32(0)), state.updates
        )
        norms.append(float(step(scaled, make_batch())[3]["opt/grad_norm"]))
    assert norms[0] == pytest.approx(norms[1], rel=0.02)
