"""The lambda return: what the critic learns and the actor is judged by."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def lambda_return(
    reward: Float[Array, " t *n"],
    value: Float[Array, " t *n"],
    live: Float[Array, " t *n"],
    keep: Float[Array, " t *n"],
) -> Float[Array, " t-1 *n"]:
    """Time comes first; one entry less than its inputs.

        R_t = reward_{t+1} + live_{t+1} * ((1 - keep_{t+1}) * value_{t+1} + keep_{t+1} * R_{t+1})

    with R = value at the last step. `live` is the discount where the episode goes on and 0 after its end; `keep` is
    lambda, and 0 where the sequence is cut, so that the value stands in for what is not known.

    R_t is an affine function of R_{t+1}; such functions are composed in a tree, in the logarithm of the time.
    """
    offset = reward[1:] + live[1:] * (1 - keep[1:]) * value[1:]
    factor = live[1:] * keep[1:]
    offset = offset.at[-1].add(factor[-1] * value[-1])

    def compose(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

    returns, _ = jax.lax.associative_scan(compose, (offset, factor), reverse=True)
    return jnp.asarray(returns)
