"""Running statistics by which returns are scaled."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from dreamfleet.core.hyperparameters import NormalizerOptions


class NormState(NamedTuple):
    """Two running averages, which start at zero: the percentiles, or the first two moments."""

    first: Float[Array, ""]
    second: Float[Array, ""]
    weight: Float[Array, ""] | None = None  # the running average of 1, by which they are corrected; None: they are not

    @classmethod
    def initial(cls, options: NormalizerOptions) -> NormState:
        corrected = options.debias and options.impl != "none"
        return cls.zero()._replace(weight=jnp.zeros((), jnp.float32) if corrected else None)

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
    return NormState(
        _follow(options, state.first, first),
        _follow(options, state.second, second),
        None if state.weight is None else _follow(options, state.weight, jnp.ones((), jnp.float32)),
    )


def _follow(options: NormalizerOptions, average: Array, value: Array) -> Array:
    return (1 - options.rate) * average + options.rate * value


def statistics(options: NormalizerOptions, state: NormState) -> tuple[Array, Array]:
    """Offset and scale."""
    if options.impl == "none":
        return jnp.zeros(()), jnp.ones(())
    first, second = state.first, state.second
    if state.weight is not None:
        correction = jnp.where(state.weight > 0, state.weight, 1.0)  # nothing was averaged yet where it is zero
        first, second = first / correction, second / correction
    if options.impl == "perc":
        return first, jnp.maximum(options.limit, second - first)
    deviation = jnp.sqrt(jnp.maximum(0.0, second - jnp.square(first)))
    return first, jnp.maximum(options.limit, deviation)
