"""Rollouts of the policy inside the model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dreamfleet.core.spaces import Space
from dreamfleet.model.imagination import imagine, replay_actions
from dreamfleet.model.rssm import State
from dreamfleet.model.spaces import Spaces
from support import dreamer_reference as ref
from support.tiny_dreamer import make_world, tiny_options

ACT = Spaces(turn=Space(np.int32, (), 0, 3), arm=Space(np.float32, (2,), -1, 1))
WORLD = tiny_options()


def make_start(rows: int) -> State:
    rng = np.random.default_rng(0)
    stoch = np.eye(4)[rng.integers(0, 4, (rows, 3))]
    return State(jnp.asarray(rng.uniform(-1, 1, (rows, 16)), jnp.float32), jnp.asarray(stoch, jnp.float32))


def split(features: jax.Array) -> State:
    return State(features[..., :16], features[..., 16:].reshape(*features.shape[:-1], 3, 4))


def test_each_state_follows_from_the_one_before_and_the_action_chosen_in_it() -> None:
    world, start = make_world(WORLD, act=ACT), make_start(3)
    rollout = jax.jit(lambda world, start: imagine(world.dyn, world.pol, start, 4, jax.random.key(0)))(world, start)
    states, actions = split(rollout.features), rollout.actions
    assert states.deter.shape == (5, 3, 16)
    assert actions["turn"].shape == (4, 3)
    assert actions["arm"].shape == (4, 3, 2)
    np.testing.assert_array_equal(states.deter[0], start.deter)
    np.testing.assert_array_equal(states.stoch[0], start.stoch)
    for t, n in np.ndindex(4, 3):
        action = ref.action_vector(ACT, {key: np.asarray(value)[t, n] for key, value in actions.items()})
        expected = ref.core(world.dyn.core, ref.f64(states.deter[t, n]), ref.f64(states.stoch[t, n]), action)
        np.testing.assert_allclose(states.deter[t + 1, n], expected, rtol=1e-5, atol=2e-6)
        assert sorted(np.unique(np.asarray(states.stoch[t + 1, n]))) == [0, 1]


def test_samples_of_the_state_follow_the_prior() -> None:
    world, one = make_world(WORLD, act=ACT), make_start(1)
    start = jax.tree.map(lambda x: jnp.repeat(x, 4000, 0), one)
    action = jnp.zeros((1, 4000, 5))
    states = jax.jit(lambda world: replay_actions(world.dyn, start, action, jax.random.key(0)))(world)
    deter = ref.core(world.dyn.core, ref.f64(one.deter[0]), ref.f64(one.stoch[0]), np.zeros(5))
    probs = np.exp(ref.prior(world.dyn, deter))
    np.testing.assert_allclose(np.asarray(states.stoch[0]).mean(0), probs, atol=0.035)  # four deviations


def test_steps_and_rows_draw_different_samples() -> None:
    world = make_world(WORLD, act=ACT)
    start = jax.tree.map(lambda x: jnp.repeat(x, 64, 0), make_start(1))
    rollout = jax.jit(lambda world: imagine(world.dyn, world.pol, start, 3, jax.random.key(0)))(world)
    arms = np.asarray(rollout.actions["arm"])
    assert len(np.unique(arms)) == arms.size
    assert len({row.tobytes() for row in np.asarray(split(rollout.features).stoch[1])}) > 8


def test_no_gradient_flows_through_a_rollout() -> None:
    world = make_world(WORLD, act=ACT)

    def total(world: object, start: State) -> jax.Array:
        rollout = imagine(world.dyn, world.pol, start, 2, jax.random.key(0))  # type: ignore[attr-defined]
        return rollout.features.sum() + rollout.actions["arm"].sum()

    grads = jax.jit(jax.grad(total, (0, 1)))(world, make_start(2))
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(grads))
