"""The recurrent model, one step at a time and over sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.core.hyperparameters import RSSMOptions
from dreamfleet.model.rssm import RSSM, State, bounded, class_indices
from dreamfleet.model.rssm_scan import observe_sequence
from support import dreamer_reference as ref
from support.dreamer_checks import check_reset_forgets
from support.tiny_dreamer import lively, tiny_options

TOKENS, ACTIONS = 5, 3
TINY = tiny_options().dyn
VARIANTS = {
    "published": TINY,
    "deeper": replace(TINY, dynlayers=2, obslayers=2, imglayers=1),
    "absolute": replace(TINY, absolute=True),
    "few blocks": replace(TINY, blocks=2, unimix=0.2),
}


def make(options: RSSMOptions = TINY) -> RSSM:
    return lively(lambda key: RSSM(key, options, ACTIONS, TOKENS))


class Given:
    """Inputs of a short sequence, time first, with a reset in the middle."""

    def __init__(self, options: RSSMOptions = TINY, steps: int = 4, rows: int = 3) -> None:
        rng = np.random.default_rng(0)
        self.deter = rng.uniform(-1, 1, (rows, options.deter))
        self.stoch = np.eye(options.classes)[rng.integers(0, options.classes, (rows, options.stoch))]
        self.tokens = rng.standard_normal((steps, rows, TOKENS))
        self.actions = 2 * rng.standard_normal((steps, rows, ACTIONS))
        self.resets = np.zeros((steps, rows), bool)
        self.resets[steps // 2, 0] = self.resets[0, 1] = True
        self.noise = rng.gumbel(size=(steps, rows, options.stoch, options.classes))

    def state(self, dtype: Any = jnp.float32) -> State:
        return State(jnp.asarray(self.deter, dtype), jnp.asarray(self.stoch, dtype))

    def inputs(self, dtype: Any = jnp.float32) -> tuple[jax.Array, ...]:
        floats = [jnp.asarray(x, dtype) for x in (self.tokens, self.actions)]
        return (*floats, jnp.asarray(self.resets), jnp.asarray(self.noise, jnp.float32))


def observe_by_steps(rssm: RSSM, state: State, *inputs: jax.Array) -> tuple[State, jax.Array]:
    found = []
    for given in zip(*inputs, strict=True):
        state, log_probs = rssm.observe(state, *given)
        found.append((state, log_probs))
    return jax.tree.map(lambda *steps: jnp.stack(steps), *found)


@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize("observe", [observe_by_steps, observe_sequence], ids=["steps", "sequence"])
def test_observing_equals_the_float64_reference(kind: str, observe: Any) -> None:
    options = VARIANTS[kind]
    rssm, given = make(options), Given(options)
    states, log_probs = jax.jit(observe)(rssm, given.state(), *given.inputs())
    for row in range(3):
        deter, stoch = given.deter[row], given.stoch[row]
        for t in range(4):
            deter, stoch, expected = ref.observe(
                rssm,
                deter,
                stoch,
                given.tokens[t, row],
                given.actions[t, row],
                given.resets[t, row],
                given.noise[t, row],
            )
            np.testing.assert_allclose(states.deter[t, row], deter, rtol=1e-5, atol=2e-6)
            np.testing.assert_allclose(log_probs[t, row], expected, rtol=1e-5, atol=2e-5)
            np.testing.assert_array_equal(states.stoch[t, row], stoch)


def test_imagining_and_the_prior_equal_the_float64_reference() -> None:
    rssm, given = make(), Given()
    action, noise = (x[0] for x in given.inputs()[1::2])
    state = jax.jit(lambda rssm, state: rssm.imagine(state, action, noise))(rssm, given.state())
    prior = jax.jit(lambda rssm, deter: rssm.prior_log_probs(deter))(rssm, state.deter)
    for row in range(3):
        deter = ref.core(rssm.core, given.deter[row], given.stoch[row], given.actions[0, row])
        np.testing.assert_allclose(state.deter[row], deter, rtol=1e-5, atol=2e-6)
        log_probs = ref.prior(rssm, deter)
        np.testing.assert_allclose(prior[row], log_probs, rtol=1e-5, atol=2e-5)
        chosen = (log_probs + given.noise[0, row]).argmax(-1)
        assert class_indices(state.stoch[row]).tolist() == chosen.tolist()


@pytest.mark.parametrize(("kind", "unroll"), [("published", 1), ("published", 3), ("few blocks", 1)])
def test_gradients_over_a_sequence_are_those_of_the_plain_steps(kind: str, unroll: int) -> None:
    options = VARIANTS[kind]
    rssm, given = make(options), Given(options)
    rng = np.random.default_rng(9)
    shapes = [(4, 3, options.deter), (4, 3, options.stoch, options.classes), (4, 3, options.stoch, options.classes)]
    weights = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]

    def gradients(observe: Any) -> Any:
        def loss(rssm: RSSM, state: State, tokens: jax.Array, actions: jax.Array) -> jax.Array:
            states, log_probs = observe(rssm, state, tokens, actions, *given.inputs()[2:])
            return sum(jnp.sum(w * x) for w, x in zip(weights, (*states, log_probs), strict=True))

        return jax.jit(jax.grad(loss, (0, 1, 2, 3)))(rssm, given.state(), *given.inputs()[:2])

    fast = gradients(lambda *args: observe_sequence(*args, unroll))
    plain = gradients(observe_by_steps)
    named = zip(jax.tree_util.tree_flatten_with_path(plain)[0], jax.tree.leaves(fast), strict=True)
    for (path, a), b in named:
        size = float(jnp.abs(a).max())
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5 * max(size, 1e-3), err_msg=name)
        assert b.dtype == a.dtype
        assert size > 0 or "prior" in name


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_both_forms_keep_the_compute_dtype_and_agree_within_its_precision(dtype: Any) -> None:
    rssm, given = make(), Given()
    for observe in (observe_by_steps, observe_sequence):
        states, log_probs = jax.jit(observe)(rssm, given.state(dtype), *given.inputs(dtype))
        assert states.deter.dtype == states.stoch.dtype == dtype
        assert log_probs.dtype == jnp.float32
        expected, *_ = ref.observe(
            rssm, given.deter[2], given.stoch[2], given.tokens[0, 2], given.actions[0, 2], False, given.noise[0, 2]
        )
        np.testing.assert_allclose(states.deter[0, 2].astype(jnp.float32), expected, atol=0.03)


def test_weight_gradients_in_bfloat16_are_near_those_in_float32() -> None:
    rssm, given = make(), Given()

    def gradients(dtype: Any) -> Any:
        def loss(rssm: RSSM) -> jax.Array:
            states, log_probs = observe_sequence(rssm, given.state(dtype), *given.inputs(dtype))
            return jnp.sum(states.deter.astype(jnp.float32)) + jnp.sum(log_probs[..., 0])

        return jax.jit(jax.grad(loss))(rssm)

    for half, single in zip(*(jax.tree.leaves(gradients(d)) for d in (jnp.bfloat16, jnp.float32)), strict=True):
        assert half.dtype == jnp.float32
        assert float(jnp.linalg.norm(half - single)) <= 0.1 * float(jnp.linalg.norm(single)) + 1e-3


def test_a_reset_forgets_what_was_before() -> None:
    check_reset_forgets()


@pytest.mark.parametrize("observe", [observe_by_steps, observe_sequence], ids=["steps", "sequence"])
def test_a_reset_forgets_even_what_is_not_finite(observe: Any) -> None:
    rssm, given = make(), Given(steps=1)
    tokens, actions, _, noise = given.inputs()
    resets = jnp.ones((1, 3), bool)
    broken = State(jnp.full((3, 16), jnp.nan), jnp.full((3, 3, 4), jnp.inf))
    clean, _ = observe(rssm, given.state(), tokens, actions, resets, noise)
    found, _ = observe(rssm, broken, tokens, jnp.full_like(actions, jnp.nan), resets, noise)
    np.testing.assert_array_equal(found.deter, clean.deter)


def test_a_window_from_stored_latents_repeats_what_was_seen_while_acting() -> None:
    """Acting goes step by step; training takes up in the middle, from the latents stored before it."""
    rssm, given = make(), Given(steps=6)
    acted, _ = jax.jit(observe_by_steps)(rssm, given.state(), *given.inputs())
    for begin in (1, 3, 4):
        stored = jax.tree.map(lambda x, begin=begin: x[begin - 1], acted)
        classes = class_indices(stored.stoch)
        start = State(stored.deter, jax.nn.one_hot(classes, 4, dtype=jnp.float32))
        trained, _ = jax.jit(observe_sequence)(rssm, start, *(x[begin:] for x in given.inputs()))
        np.testing.assert_allclose(trained.deter, acted.deter[begin:], rtol=1e-5, atol=2e-6)
        np.testing.assert_array_equal(trained.stoch, acted.stoch[begin:])


def test_large_actions_are_scaled_to_one_without_a_gradient_of_the_scale() -> None:
    action = jnp.asarray([-4.0, -0.5, 0.0, 1.0, 8.0])
    assert bounded(action).tolist() == [-1.0, -0.5, 0.0, 1.0, 1.0]
    assert jax.grad(lambda x: bounded(x).sum())(action).tolist() == [0.25, 1.0, 1.0, 1.0, 0.125]


def test_the_first_state_is_zero() -> None:
    state = make().initial(2, jnp.bfloat16)
    assert not any(np.asarray(x, np.float32).any() for x in state)
    assert state.deter.dtype == jnp.bfloat16
