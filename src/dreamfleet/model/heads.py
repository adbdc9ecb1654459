"""Networks on top of the state's features: reward, continue, value and policy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from dreamfleet.core.hyperparameters import ContinueOptions, PolicyOptions, RewardOptions, ValueOptions
from dreamfleet.core.spaces import Space
from dreamfleet.model.distributions import (
    NORMAL_ENTROPY,
    TwoHot,
    categorical_entropy,
    choose,
    gumbel,
    normal_entropy,
    normal_log_prob,
)
from dreamfleet.model.layers import MLP, Linear
from dreamfleet.model.spaces import Spaces, class_counts, width
from dreamfleet.model.vectors import by_element


class TwoHotHead(eqx.Module):
    mlp: MLP
    out: Linear

    def __init__(self, key: PRNGKeyArray, inputs: int, options: RewardOptions | ValueOptions) -> None:
        trunk, out = jax.random.split(key)
        self.mlp = MLP(trunk, inputs, options.units, options.layers)
        self.out = Linear(out, options.units, options.bins, options.outscale)

    def __call__(self, features: Float[Array, "*n f"]) -> TwoHot:
        return TwoHot(self.out(self.mlp(features)))


class BinaryHead(eqx.Module):
    mlp: MLP
    out: Linear

    def __init__(self, key: PRNGKeyArray, inputs: int, options: ContinueOptions) -> None:
        trunk, out = jax.random.split(key)
        self.mlp = MLP(trunk, inputs, options.units, options.layers)
        self.out = Linear(out, options.units, 1, options.outscale)

    def __call__(self, features: Float[Array, "*n f"]) -> Float[Array, "*n"]:
        """The logit."""
        return self.out(self.mlp(features))[..., 0].astype(jnp.float32)


class Discrete(eqx.Module):
    """Independent categorical distributions, one per element of a space."""

    log_probs: Float[Array, "*n e c"]
    space: Space = eqx.field(static=True)

    def sample(self, noise: Float[Array, "*n e c"]) -> Array:
        return self._action(choose(self.log_probs, noise))

    def mode(self) -> Array:
        return self._action(jnp.argmax(self.log_probs, -1))

    def log_prob(self, action: Array) -> Float[Array, "*n"]:
        index = action.reshape(self.log_probs.shape[:-1]).astype(jnp.int32) - self.space.low.reshape(-1)
        hit = index[..., None] == jnp.arange(self.log_probs.shape[-1])
        return jnp.sum(jnp.where(hit, self.log_probs, 0.0), (-2, -1))

    def entropy(self) -> Float[Array, "*n"]:
        finite = jnp.where(jnp.isfinite(self.log_probs), self.log_probs, -1e9)
        return jnp.sum(categorical_entropy(finite), -1)

    def randomness(self, entropy: Array) -> Array:
        """Between 0 for a sure choice and 1 for a uniform one."""
        most = sum(math.log(count) for count in class_counts(self.space))
        return entropy / most

    def _action(self, index: Array) -> Array:
        shifted = index + self.space.low.reshape(-1)
        return shifted.reshape(*index.shape[:-1], *self.space.shape).astype(self.space.dtype)


class Continuous(eqx.Module):
    """A normal distribution per element; samples may leave the range of the mean."""

    mean: Float[Array, "*n e"]
    std: Float[Array, "*n e"]
    space: Space = eqx.field(static=True)
    least_std: float = eqx.field(static=True)
    most_std: float = eqx.field(static=True)

    def sample(self, noise: Float[Array, "*n e"]) -> Array:
        return self._action(self.mean + self.std * noise)

    def mode(self) -> Array:
        return self._action(self.mean)

    def log_prob(self, action: Array) -> Float[Array, "*n"]:
        return jnp.sum(normal_log_prob(self.mean, self.std, action.reshape(self.mean.shape)), -1)

    def entropy(self) -> Float[Array, "*n"]:
        return jnp.sum(normal_entropy(self.std), -1)

    def randomness(self, entropy: Array) -> Array:
        low, high = (self.mean.shape[-1] * (NORMAL_ENTROPY + math.log(x)) for x in (self.least_std, self.most_std))
        return (entropy - low) / (high - low)

    def _action(self, value: Array) -> Array:
        return value.reshape(*value.shape[:-1], *self.space.shape).astype(self.space.dtype)


class PolicyHead(eqx.Module):
    """Independent heads, one per action key, on one trunk."""

    mlp: MLP
    heads: dict[str, dict[str, Linear]]
    spaces: Spaces = eqx.field(static=True)
    options: PolicyOptions = eqx.field(static=True)

    def __init__(self, key: PRNGKeyArray, inputs: int, spaces: Mapping[str, Space], options: PolicyOptions) -> None:
        trunk, *keys = jax.random.split(key, 1 + len(spaces))
        self.mlp = MLP(trunk, inputs, options.units, options.layers)
        self.spaces = Spaces(spaces)
        self.options = options
        self.heads = {}
        for name, key in zip(sorted(spaces), keys, strict=True):
            parts = ("logits",) if spaces[name].discrete else ("mean", "std")
            size = width(spaces[name])
            self.heads[name] = {
                part: Linear(own, options.units, size, options.outscale)
                for part, own in zip(parts, jax.random.split(key, len(parts)), strict=True)
            }

    def __call__(self, features: Float[Array, "*n f"]) -> dict[str, Discrete | Continuous]:
        return self.distributions(self.mlp(features))

    def distributions(self, x: Float[Array, "*n u"]) -> dict[str, Discrete | Continuous]:
        """From the output of the trunk."""
        return {key: self._distribution(self.spaces[key], head, x) for key, head in self.heads.items()}

    def _distribution(self, space: Space, head: dict[str, Linear], x: Array) -> Discrete | Continuous:
        options = self.options
        if space.discrete:
            logits = by_element(space, head["logits"](x).astype(jnp.float32))
            counts = jnp.asarray(class_counts(space), jnp.float32)[:, None]
            log_probs = jax.nn.log_softmax(logits)
            if options.unimix:
                mixed = (1 - options.unimix) * jnp.exp(log_probs) + options.unimix / counts
                log_probs = jnp.where(jnp.isfinite(logits), jnp.log(mixed), -jnp.inf)
            return Discrete(log_probs, space)
        mean = jnp.tanh(head["mean"](x).astype(jnp.float32))
        spread = options.maxstd - options.minstd
        std = spread * jax.nn.sigmoid(head["std"](x).astype(jnp.float32) + 2) + options.minstd
        return Continuous(mean, std, space, options.minstd, options.maxstd)


def draw_noise(spaces: Mapping[str, Space], key: PRNGKeyArray, lead: tuple[int, ...]) -> dict[str, Array]:
    """What `sample` needs for each action, for any number of steps at once."""
    keys = jax.random.split(key, len(spaces)) if len(spaces) > 1 else [key]
    noise = {}
    for name, key in zip(sorted(spaces), keys, strict=True):
        space = spaces[name]
        if space.discrete:
            counts = class_counts(space)
            noise[name] = gumbel(key, (*lead, len(counts), max(counts)))
        else:
            noise[name] = jax.random.normal(key, (*lead, width(space)))
    return noise


def sample_all(dists: Mapping[str, Discrete | Continuous], noise: Mapping[str, Array]) -> dict[str, Array]:
    return {name: dist.sample(noise[name]) for name, dist in dists.items()}
