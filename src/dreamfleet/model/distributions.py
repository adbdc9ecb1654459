"""Output distributions: their log-likelihoods, entropies and samples, in float32."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

BIN_RANGE = 20.0
NORMAL_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)  # of a standard deviation of 1


def symlog(x: Array) -> Array:
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def mix_uniform(logits: Float[Array, "*n c"], unimix: float) -> Float[Array, "*n c"]:
    """Log-probabilities of the softmax mixed with a uniform distribution, in float32."""
    logits = logits.astype(jnp.float32)
    if unimix == 0:
        return jax.nn.log_softmax(logits)
    return jnp.log((1 - unimix) * jax.nn.softmax(logits) + unimix / logits.shape[-1])


def gumbel(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    return jax.random.gumbel(key, shape, jnp.float32)


def choose(log_probs: Float[Array, "*n c"], noise: Float[Array, "*n c"]) -> Int[Array, "*n"]:
    """A sample: the largest of log-probability plus Gumbel noise."""
    return jnp.argmax(log_probs + noise, -1).astype(jnp.int32)


def straight_through(onehot: Float[Array, "*n c"], probs: Float[Array, "*n c"]) -> Float[Array, "*n c"]:
    """The value of `onehot` with the gradient of `probs`."""
    return jax.lax.stop_gradient(onehot.astype(probs.dtype)) + (probs - jax.lax.stop_gradient(probs))


def categorical_kl(post: Float[Array, "*n s c"], prior: Float[Array, "*n s c"]) -> Float[Array, "*n"]:
    """Of log-probabilities, summed over the latents."""
    return jnp.sum(jnp.exp(post) * (post - prior), (-2, -1))


def categorical_entropy(log_probs: Float[Array, "*n c"]) -> Float[Array, "*n"]:
    return -jnp.sum(jnp.exp(log_probs) * log_probs, -1)


def make_bins(count: int) -> np.ndarray:
    """An odd number of them: symexp of evenly spaced points from -20 to 0, and their mirror image."""
    if count % 2 == 0:
        raise ValueError(f"{count} bins have no middle: choose an odd number, such as 255")
    half = np.linspace(-BIN_RANGE, 0, count // 2 + 1, dtype=np.float32)
    negative = -np.expm1(-half)
    return np.concatenate([negative, -negative[:-1][::-1]])


class TwoHot(eqx.Module):
    """A distribution over bins that grow exponentially away from zero."""

    logits: Float[Array, "*n bins"]

    def mean(self) -> Float[Array, "*n"]:
        """Summed in pairs of opposite bins, so that uniform logits give exactly zero."""
        probs = jax.nn.softmax(self.logits.astype(jnp.float32))
        count = probs.shape[-1]
        half = count // 2
        # The probabilities are subtracted before they are multiplied: a fused multiply-add would leave a remainder.
        surplus = probs[..., count - half :] - jnp.flip(probs[..., :half], -1)
        return jnp.sum(surplus * make_bins(count)[count - half :], -1)

    def loss(self, target: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Cross entropy with the two bins around the target, weighted linearly; beyond the edges it is the edge."""
        log_probs = jax.nn.log_softmax(self.logits.astype(jnp.float32))
        return -jnp.sum(two_hot(jax.lax.stop_gradient(target), log_probs.shape[-1]) * log_probs, -1)


def two_hot(target: Float[Array, "*n"], count: int) -> Float[Array, "*n bins"]:
    bins = jnp.asarray(make_bins(count))
    target = jnp.clip(target.astype(jnp.float32), bins[0], bins[-1])
    below = jnp.clip(jnp.searchsorted(bins, target, side="right", method="compare_all") - 1, 0, count - 1)
    above = jnp.minimum(below + 1, count - 1)
    low, high = bins[below], bins[above]
    same = below == above
    weight = (target - low) / jnp.where(same, 1.0, high - low)  # NaN stays NaN; zero where both are the edge
    index = jnp.arange(count)
    at_below, at_above = index == below[..., None], index == above[..., None]
    weight = weight[..., None]
    return jnp.where(at_below, 1 - weight, 0.0) + jnp.where(at_above, weight, 0.0)


def bernoulli_loss(logit: Float[Array, "*n"], target: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Negative log-likelihood of a target between 0 and 1."""
    logit = logit.astype(jnp.float32)
    return -(target * jax.nn.log_sigmoid(logit) + (1 - target) * jax.nn.log_sigmoid(-logit))


def normal_log_prob(mean: Array, std: Array, value: Array) -> Array:
    """Per element."""
    return -0.5 * jnp.square((value - mean) / std) - jnp.log(std) - 0.5 * math.log(2 * math.pi)


def normal_entropy(std: Array) -> Array:
    return NORMAL_ENTROPY + jnp.log(std)
