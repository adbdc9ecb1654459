"""Clipping by the size of each tensor, LaProp and a learning rate that warms up, as Optax transforms."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from dreamfleet.core.hyperparameters import OptimizerOptions

SMALL = 2**16  # elements
SMALLEST_NORM = 1e-3  # of a parameter tensor; one that starts at zero must be able to grow


def make_optimizer(options: OptimizerOptions) -> optax.GradientTransformation:
    """The form of its state is the same for all options, so that a run may change them when it is resumed."""
    scaled = laprop(options.beta1, options.beta2, options.eps)
    if options.wd:
        scaled = with_decay(scaled, options.wd)
    return optax.chain(clip_by_size(options.agc), scaled, optax.scale_by_learning_rate(learning_rate(options)))


def with_decay(optimizer: optax.GradientTransformation, rate: float) -> optax.GradientTransformation:
    """Its updates with a share of the weights added, of kernels alone. The state is that of the optimizer."""

    def decay(update: Array, param: Array, decays: bool) -> Array:
        return update + rate * param if decays else update

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params)
        return jax.tree.map(decay, updates, params, decays(params)), state

    return optax.GradientTransformation(optimizer.init, update)


def decays(params: Any) -> Any:
    """Which tensors the decay of weights applies to."""
    return jax.tree_util.tree_map_with_path(lambda path, _: getattr(path[-1], "name", "") == "kernel", params)


def clip_by_size(limit: float) -> optax.GradientTransformation:
    """Each tensor's gradient is at most `limit` times the norm of the tensor."""

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten(grads)
        sizes = zip(leaf_norms(leaves), leaf_norms(jax.tree.leaves(params)), strict=True)
        ratios = [grad / (limit * jnp.maximum(SMALLEST_NORM, param)) for grad, param in sizes]
        clipped = [grad / jnp.maximum(1.0, ratio) for grad, ratio in zip(leaves, ratios, strict=True)]
        return jax.tree.unflatten(structure, clipped), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def leaf_norms(leaves: list[Array]) -> list[Array]:
    """Small tensors of one shape are taken together: there are many, and each would be a kernel of its own."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, leaf in enumerate(leaves):
        key = leaf.shape if leaf.size <= SMALL else (index, *leaf.shape)
        groups.setdefault(key, []).append(index)
    norms: dict[int, Array] = {}
    for members in groups.values():
        stacked = jnp.stack([leaves[index].reshape(-1) for index in members])
        norms.update(zip(members, jnp.linalg.norm(stacked, axis=1), strict=True))
    return [norms[index] for index in range(len(leaves))]


class LaPropState(NamedTuple):
    step: Array
    square: Any
    momentum: Any


def laprop(beta1: float, beta2: float, eps: float) -> optax.GradientTransformation:
    """Scales the gradient by its running size first and takes the momentum of the result; both bias-corrected."""

    def init(params: Any) -> LaPropState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return LaPropState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(grads: Any, state: LaPropState, params: Any = None) -> tuple[Any, LaPropState]:
        count = state.step + 1
        square_correction = 1 - beta2 ** count.astype(jnp.float32)
        momentum_correction = 1 - beta1 ** count.astype(jnp.float32)
        square = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * jnp.square(g), state.square, grads)
        scaled = jax.tree.map(lambda g, v: g / (jnp.sqrt(v / square_correction) + eps), grads, square)
        momentum = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.momentum, scaled)
        updates = jax.tree.map(lambda m: m / momentum_correction, momentum)
        return updates, LaPropState(count, square, momentum)

    return optax.GradientTransformation(init, update)


def learning_rate(options: OptimizerOptions) -> optax.Schedule:
    """The first update has a rate of zero; after `warmup` updates the rate is full, then decays to a tenth or stays."""

    def rate(count: Array) -> Array:
        step = jnp.asarray(count, jnp.float32)
        warm = jnp.minimum(1.0, step / options.warmup) if options.warmup else jnp.ones(())
        progress = jnp.clip((step - options.warmup) / max(1, options.anneal - options.warmup), 0.0, 1.0)
        if options.schedule == "linear":
            warm = warm * (1 - 0.9 * progress)
        elif options.schedule == "cosine":
            warm = warm * (0.1 + 0.45 * (1 + jnp.cos(math.pi * progress)))
        return options.lr * warm

    return rate
