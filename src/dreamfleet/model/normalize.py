"""Running statistics by which returns are scaled."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from dreamfleet.core.hyperparameters import NormalizerOptions


class NormState(NamedTuple):
    """Two running averages: the percentiles, or the first two moments. They start at zero and are not corrected."""

    first: Float[Array, ""]
    second: Float[Array, ""]

    @classmethod
    def zero(cls) -> NormState:
        return cls(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))


def update(options: NormalizerOptions, state: NormState, values: Array) -> NormState:
    if options.impl == "none":
        return state
    values = values.astype(jnp.float32)
    if options.impl == "perc":
        new = jnp.percentile(values, jnp.asarray([options.perclo, options.perchi]))
        first, second = new[0], new[1]
    else:
        first, second = values.mean(), jnp.square(values).mean()
    rate = options.rate
    return NormState((1 - rate) * state.first + rate * first, (1 - rate) * state.second + rate * second)


def statistics(options: NormalizerOptions, state: NormState) -> tuple[Array, Array]:
    """Offset and scale."""
    if options.impl == "none":
        return jnp.zeros(()), jnp.ones(())
    if options.impl == "perc":
        return state.first, jnp.maximum(options.limit, state.second - state.first)
    deviation = jnp.sqrt(jnp.maximum(0.0, state.second - jnp.square(state.first)))
    return state.first, jnp.maximum(options.limit, deviation)
