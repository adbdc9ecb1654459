"""The losses of the world model, the actor and the critic, as pure functions. Time comes first everywhere."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from dreamfleet.model.distributions import TwoHot, categorical_kl
from dreamfleet.model.heads import Continuous, Discrete

sg = jax.lax.stop_gradient


def latent_losses(
    post: Float[Array, "*n s c"], prior: Float[Array, "*n s c"], free_nats: float
) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """How far the prior is from the posterior, once to move the one and once the other; log-probabilities go in.

    Below `free_nats`, over all latents together, there is nothing to gain.
    """
    dyn = jnp.maximum(free_nats, categorical_kl(sg(post), prior))
    rep = jnp.maximum(free_nats, categorical_kl(post, sg(prior)))
    return dyn, rep


def rollout_weights(cont: Float[Array, "t n"], disc: float) -> Float[Array, "t n"]:
    """How likely each imagined state is to be reached, the continue at the start included."""
    return sg(jnp.cumprod(disc * cont, 0) / disc)


def actor_loss(
    dists: Mapping[str, Discrete | Continuous],
    actions: Mapping[str, Array],
    advantage: Float[Array, "t n"],
    weight: Float[Array, "t n"],
    entropy_scale: float,
) -> Float[Array, "t n"]:
    """REINFORCE for every kind of action: -weight * (log pi(a) * advantage + entropy_scale * entropy)."""
    log_prob = sum(dist.log_prob(sg(actions[key])) for key, dist in dists.items())
    entropy = sum(dist.entropy() for dist in dists.values())
    return -sg(weight) * (log_prob * sg(advantage) + entropy_scale * entropy)


def critic_loss(
    value: TwoHot, target: Float[Array, "t n"], slow: Float[Array, "t n"], slowreg: float
) -> Float[Array, "t n"]:
    """Towards the target, and towards what the slow critic says."""
    return value.loss(sg(target)) + slowreg * value.loss(sg(slow))


def continue_target(is_terminal: Bool[Array, "t n"], horizon: int, contdisc: bool) -> Float[Array, "t n"]:
    target = 1.0 - is_terminal.astype(jnp.float32)
    return target * (1 - 1 / horizon) if contdisc else target
