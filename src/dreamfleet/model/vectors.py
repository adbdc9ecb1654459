"""How observations and actions of any space become vectors, and vectors of logits become distributions."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from dreamfleet.core.spaces import Space
from dreamfleet.model.distributions import symlog
from dreamfleet.model.spaces import class_counts, vector_keys


def one_hot(space: Space, value: Array, dtype: jnp.dtype) -> Float[Array, "*n w"]:
    """One-hot vectors of all elements, joined. A value outside of its classes is all zeros."""
    counts = class_counts(space)
    lead = value.shape[: value.ndim - len(space.shape)]
    index = value.astype(jnp.int32).reshape(*lead, len(counts)) - np.asarray(space.low, np.int32).reshape(-1)
    most = max(counts)
    if min(counts) == most:
        return jax.nn.one_hot(index, most, dtype=dtype).reshape(*lead, -1)
    owner = np.repeat(np.arange(len(counts)), counts)
    own_class = np.concatenate([np.arange(count) for count in counts])
    return (index[..., owner] == own_class).astype(dtype)


def observation_vector(spaces: Mapping[str, Space], obs: Mapping[str, Array], squash: bool, dtype: jnp.dtype) -> Array:
    """All keys that are not images. A key with -inf, or with -1 where it is a signed integer, is missing: all zeros."""
    return jnp.concatenate([_vector(spaces[key], obs[key], squash, dtype) for key in vector_keys(spaces)], -1)


def _vector(space: Space, value: Array, squash: bool, dtype: jnp.dtype) -> Array:
    known = ~is_missing(space, value)[..., None]
    if space.discrete:
        return one_hot(space, value, dtype) * known.astype(dtype)
    flat = value.reshape(*value.shape[: value.ndim - len(space.shape)], -1).astype(jnp.float32)
    flat = jnp.where(known, flat, 0.0)
    return (symlog(flat) if squash else flat).astype(dtype)


def is_missing(space: Space, value: Array) -> Array:
    axes = tuple(range(value.ndim - len(space.shape), value.ndim))
    if not space.discrete:
        return jnp.any(jnp.isneginf(value), axes)
    if space.dtype.kind == "i" and (space.low >= 0).all():
        return jnp.any(value == -1, axes)
    return jnp.zeros(value.shape[: value.ndim - len(space.shape)], bool)


def action_vector(spaces: Mapping[str, Space], action: Mapping[str, Array], dtype: jnp.dtype) -> Float[Array, "*n a"]:
    """Discrete actions as one-hot vectors, continuous ones as they are, by sorted key."""
    parts = []
    for key in sorted(spaces):
        space, value = spaces[key], action[key]
        if space.discrete:
            parts.append(one_hot(space, value, dtype))
        else:
            parts.append(value.reshape(*value.shape[: value.ndim - len(space.shape)], -1).astype(dtype))
    return jnp.concatenate(parts, -1)


def by_element(space: Space, logits: Float[Array, "*n w"]) -> Float[Array, "*n e c"]:
    """The logits of each element in a row of its own; where there are fewer classes than in others, -inf follows."""
    counts = class_counts(space)
    most = max(counts)
    if min(counts) == most:
        return logits.reshape(*logits.shape[:-1], len(counts), most)
    offsets = np.cumsum([0, *counts[:-1]])[:, None] + np.arange(most)
    inside = np.arange(most) < np.asarray(counts)[:, None]
    return jnp.where(inside, logits[..., np.where(inside, offsets, 0)], -jnp.inf)
