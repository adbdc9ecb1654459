"""Rollouts of the policy inside the world model."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from dreamfleet.model.distributions import gumbel
from dreamfleet.model.heads import PolicyHead, draw_noise, sample_all
from dreamfleet.model.layers import add_bias
from dreamfleet.model.rssm import RSSM, State, flat
from dreamfleet.model.vectors import action_vector


class Rollout(NamedTuple):
    """Time first. The features begin with those of the starts, so there is one more of them than of the actions."""

    features: Float[Array, "t1 n f"]
    actions: dict[str, Array]


def imagine(rssm: RSSM, policy: PolicyHead, start: State, length: int, key: PRNGKeyArray, unroll: int = 1) -> Rollout:
    """Nothing is learned from how a rollout came about, so no gradient flows through it.

    All noise is drawn before the first step: one large draw instead of many small ones. Layers that see the same input
    are one product: `deter` goes to the prior, the policy and the next step, `stoch` to the latter two.
    """
    rssm, policy, start = jax.lax.stop_gradient((rssm, policy, start))
    dtype, rows = start.deter.dtype, start.deter.shape[0]
    action_key, state_key = jax.random.split(key)
    noise = (
        draw_noise(policy.spaces, action_key, (length, rows)),
        gumbel(state_key, (length, *start.stoch.shape)),
        jnp.arange(length),
    )
    prior, trunk, core = rssm.prior.layers[0].linear, policy.mlp.layers[0].linear, rssm.core
    by_deter = _beside(dtype, trunk.kernel[: start.deter.shape[-1]], core.from_deter.linear.kernel, prior.kernel)
    by_stoch = _beside(dtype, trunk.kernel[start.deter.shape[-1] :], core.from_stoch.linear.kernel)
    cuts = np.cumsum([trunk.kernel.shape[1], core.from_deter.linear.kernel.shape[1]])
    seen = jnp.zeros((length + 1, rows, start.features().shape[-1]), dtype)

    def step(carry: Any, given: Any) -> tuple[Any, dict[str, Array]]:
        state, (for_policy, for_core), seen = carry
        action_noise, state_noise, index = given
        seen = jax.lax.dynamic_update_index_in_dim(seen, state.features(), index, 0)
        stoch_policy, stoch_core = jnp.split(flat(state.stoch) @ by_stoch, cuts[:1], -1)
        dists = policy.distributions(policy.mlp.after_first(add_bias(for_policy + stoch_policy, trunk.bias)))
        actions = sample_all(dists, action_noise)
        deter = core.advance(
            state.deter,
            core.from_deter.after_linear(for_core),
            core.from_stoch.after_linear(stoch_core),
            action_vector(policy.spaces, actions, dtype),
        )
        *for_next, for_prior = jnp.split(deter @ by_deter, cuts, -1)
        log_probs = rssm.prior_after_first(add_bias(for_prior, prior.bias))
        state = State(deter, rssm.sample(log_probs, state_noise, dtype))
        return (state, tuple(for_next), seen), actions

    first = tuple(jnp.split(start.deter @ by_deter, cuts, -1)[:2])
    (last, _, seen), actions = jax.lax.scan(step, (start, first, seen), noise, unroll=unroll)
    return Rollout(seen.at[length].set(last.features()), actions)


def _beside(dtype: Any, *kernels: Float[Array, "a b"]) -> Float[Array, "a c"]:
    return jnp.concatenate(kernels, 1).astype(dtype)


def replay_actions(rssm: RSSM, start: State, actions: Array, key: PRNGKeyArray) -> State:
    """The states that `actions` (time first, as vectors) lead to without any observation."""

    def step(state: State, given: tuple[Array, PRNGKeyArray]) -> tuple[State, State]:
        action, key = given
        state = rssm.imagine(state, action, gumbel(key, state.stoch.shape))
        return state, state

    _, states = jax.lax.scan(step, start, (actions, jax.random.split(key, actions.shape[0])))
    return states
