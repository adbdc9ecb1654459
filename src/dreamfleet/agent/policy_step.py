"""The policy as a pure function over a table of recurrent states, one row per environment slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from dreamfleet.core.hyperparameters import RSSMOptions
from dreamfleet.model.distributions import gumbel
from dreamfleet.model.dreamer_model import DreamerModel
from dreamfleet.model.encoder import Encoder
from dreamfleet.model.heads import PolicyHead, draw_noise, sample_all
from dreamfleet.model.rssm import RSSM, State, class_indices
from dreamfleet.model.vectors import action_vector


class Actor(eqx.Module):
    """The networks that acting needs, in the compute dtype but for the norms' scales."""

    enc: Encoder
    dyn: RSSM
    pol: PolicyHead


def publish(world: DreamerModel, dtype: Any) -> Actor:
    """A copy for acting; the update that changes the world makes it on the way."""

    def cast(path: Any, leaf: Array) -> Array:
        is_scale = getattr(path[-1], "name", "") == "scale"
        return leaf if is_scale else leaf.astype(dtype)

    return jax.tree_util.tree_map_with_path(cast, Actor(world.enc, world.dyn, world.pol))


class Table(NamedTuple):
    """What is remembered of every environment between two of its steps. Latents are kept as replay stores them."""

    deter: Float[Array, "slots d"]
    stoch: Int[Array, "slots s"]
    action: Float[Array, "slots a"]


def make_table(slots: int, options: RSSMOptions, actions: int, dtype: Any) -> Table:
    return Table(
        jnp.zeros((slots, options.deter), dtype),
        jnp.zeros((slots, options.stoch), jnp.uint8),
        jnp.zeros((slots, actions), dtype),
    )


def act(
    actor: Actor,
    table: Table,
    slots: Int[Array, " n"],
    obs: Mapping[str, Array],
    keys: PRNGKeyArray,
    best: bool,
    dtype: Any,
) -> tuple[Table, dict[str, Array], dict[str, Array]]:
    """Steps the environments in `slots`: their rows of the table, their actions, and the latents to store."""
    rows, actions, latents = act_rows(actor, Table(*(part[slots] for part in table)), obs, keys, best, dtype)
    table = Table(*(whole.at[slots].set(part) for whole, part in zip(table, rows, strict=True)))
    return table, actions, latents


def act_rows(
    actor: Actor, rows: Table, obs: Mapping[str, Array], keys: PRNGKeyArray, best: bool, dtype: Any
) -> tuple[Table, dict[str, Array], dict[str, Array]]:
    """As `act`, with a row for every observation.

    There are two keys, since dividing one on the device would be many small kernels. With `best` the likeliest action
    is taken; the latents are sampled all the same.
    """
    stoch = jax.nn.one_hot(rows.stoch, actor.dyn.options.classes, dtype=dtype)
    state = State(rows.deter.astype(dtype), stoch)
    noise = gumbel(keys[0], stoch.shape)
    tokens = actor.enc(obs, dtype)
    state, _ = actor.dyn.observe(state, tokens, rows.action, obs["is_first"], noise)
    dists = actor.pol(state.features())
    if best:
        actions = {name: dist.mode() for name, dist in dists.items()}
    else:
        actions = sample_all(dists, draw_noise(actor.pol.spaces, keys[1], rows.deter.shape[:1]))
    latents = {"dyn/deter": state.deter.astype(jnp.bfloat16), "dyn/stoch": class_indices(state.stoch)}
    rows = Table(state.deter, latents["dyn/stoch"], action_vector(actor.pol.spaces, actions, dtype))
    return rows, actions, latents
