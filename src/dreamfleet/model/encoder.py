"""From observations to tokens: an MLP for vectors, a convolutional network for images."""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from dreamfleet.core.hyperparameters import EncoderOptions
from dreamfleet.core.spaces import Space
from dreamfleet.model.convolution import pool_by_blocks_silu, pool_plain_silu
from dreamfleet.model.layers import MLP, Conv, Norm
from dreamfleet.model.spaces import Spaces, image_keys, map_size, vector_keys, width
from dreamfleet.model.vectors import observation_vector

MAX_BLOCKED = 64  # input channels up to which the blocked form of a layer is the faster one


class Encoder(eqx.Module):
    mlp: MLP | None
    convs: tuple[Conv, ...]
    norms: tuple[Norm, ...]
    spaces: Spaces = eqx.field(static=True)
    options: EncoderOptions = eqx.field(static=True)

    def __init__(self, key: PRNGKeyArray, spaces: Mapping[str, Space], options: EncoderOptions) -> None:
        keys = jax.random.split(key, 1 + len(options.mults))
        vectors, images = vector_keys(spaces), image_keys(spaces)
        self.spaces = Spaces(spaces)
        self.options = options
        inputs = sum(width(spaces[key]) for key in vectors)
        self.mlp = MLP(keys[0], inputs, options.units, options.layers) if vectors else None
        depths = [options.depth * mult for mult in options.mults] if images else []
        channels = sum(spaces[key].shape[-1] for key in images)
        self.convs = tuple(
            Conv(keys[1 + i], channels if i == 0 else depths[i - 1], depth, options.kernel)
            for i, depth in enumerate(depths)
        )
        self.norms = tuple(Norm(depth) for depth in depths)

    @property
    def size(self) -> int:
        """Length of a token."""
        images = image_keys(self.spaces)
        size = self.options.units if self.mlp else 0
        if images:
            height, breadth = map_size(self.spaces, len(self.options.mults))
            size += height * breadth * self.options.depth * self.options.mults[-1]
        return size

    def __call__(self, obs: Mapping[str, Array], dtype: jnp.dtype, kernels: bool = False) -> Float[Array, "*n k"]:
        """`kernels`: with GPU kernels where they pay, which XLA cannot split over devices."""
        parts = []
        if self.mlp:
            parts.append(self.mlp(observation_vector(self.spaces, obs, self.options.symlog, dtype)))
        if self.convs:
            images = jnp.concatenate([obs[key] for key in sorted(image_keys(self.spaces))], -1)
            parts.append(self._see(images, dtype, kernels))
        return jnp.concatenate(parts, -1)

    def _see(self, images: Array, dtype: jnp.dtype, kernels: bool) -> Array:
        lead = images.shape[:-3]
        x = images.reshape(-1, *images.shape[-3:]).astype(dtype) / 255 - 0.5
        for conv, norm in zip(self.convs, self.norms, strict=True):
            blocked = conv.kernel.shape[:2] == (5, 5) and conv.kernel.shape[2] <= MAX_BLOCKED
            x = (pool_by_blocks_silu if blocked else pool_plain_silu)(conv, norm, x, kernels)
        return x.reshape(*lead, -1)
