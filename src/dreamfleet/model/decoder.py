"""From states back to observations: what the world model is trained to predict."""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from dreamfleet.core.hyperparameters import DecoderOptions, RSSMOptions
from dreamfleet.core.spaces import Space, is_image
from dreamfleet.model.convolution import (
    upsample_by_phases,
    upsample_by_phases_silu,
    upsample_plain,
    upsample_plain_silu,
)
from dreamfleet.model.distributions import symlog
from dreamfleet.model.layers import MLP, BlockLinear, Conv, Dense, Linear, Norm
from dreamfleet.model.rssm import State, flat
from dreamfleet.model.spaces import Spaces, image_keys, map_size, vector_keys, width
from dreamfleet.model.vectors import by_element, is_missing


class ImageDecoder(eqx.Module):
    from_deter: BlockLinear
    from_stoch: Dense
    to_map: Linear
    norms: tuple[Norm, ...]
    convs: tuple[Conv, ...]
    map: tuple[int, int, int] = eqx.field(static=True)
    blocks: int = eqx.field(static=True)

    def __init__(
        self, key: PRNGKeyArray, options: DecoderOptions, rssm: RSSMOptions, size: tuple[int, int], channels: int
    ) -> None:
        keys = jax.random.split(key, 3 + len(options.mults))
        depths = [options.depth * mult for mult in options.mults]
        self.map = (*size, depths[-1])
        self.blocks = options.bspace
        area = size[0] * size[1] * depths[-1]
        self.from_deter = BlockLinear(keys[0], rssm.deter, area, options.bspace)
        self.from_stoch = Dense(keys[1], rssm.stoch * rssm.classes, 2 * options.units)
        self.to_map = Linear(keys[2], 2 * options.units, area)
        self.norms = tuple(Norm(depth) for depth in reversed(depths))
        ins, outs = depths[::-1], [*depths[-2::-1], channels]
        self.convs = tuple(
            Conv(key, a, b, options.kernel, options.outscale if i == len(ins) - 1 else 1.0)
            for i, (key, a, b) in enumerate(zip(keys[3:], ins, outs, strict=True))
        )

    def __call__(self, state: State, kernels: bool = False) -> Float[Array, "n h w c"]:
        """Logits of the pixels' brightness. `kernels`: with GPU kernels where they pay, on one device."""
        height, breadth, depth = self.map
        n = state.deter.shape[0]
        x = self.from_deter(state.deter).reshape(n, self.blocks, height, breadth, depth // self.blocks)
        x = x.transpose(0, 2, 3, 1, 4).reshape(n, height, breadth, depth)
        x = x + self.to_map(self.from_stoch(flat(state.stoch))).reshape(x.shape)
        x = self.norms[0].silu(x)
        by_phases = self.convs[0].kernel.shape[:2] == (5, 5)
        for conv, norm in zip(self.convs[:-1], self.norms[1:], strict=True):
            x = (upsample_by_phases_silu if by_phases else upsample_plain_silu)(conv, norm, x, kernels)
        return (upsample_by_phases if by_phases else upsample_plain)(self.convs[-1], x)


class Decoder(eqx.Module):
    mlp: MLP | None
    heads: dict[str, Linear]
    images: ImageDecoder | None
    spaces: Spaces = eqx.field(static=True)
    options: DecoderOptions = eqx.field(static=True)

    def __init__(
        self, key: PRNGKeyArray, spaces: Mapping[str, Space], options: DecoderOptions, rssm: RSSMOptions
    ) -> None:
        vectors, images = vector_keys(spaces), image_keys(spaces)
        keys = jax.random.split(key, 2 + len(vectors))
        self.spaces = Spaces(spaces)
        self.options = options
        inputs = rssm.stoch * rssm.classes + rssm.deter
        self.mlp = MLP(keys[0], inputs, options.units, options.layers) if vectors else None
        self.heads = {
            name: Linear(key, options.units, width(spaces[name]), options.outscale)
            for name, key in zip(vectors, keys[2:], strict=True)
        }
        self.images = None
        if images:
            channels = sum(spaces[name].shape[-1] for name in images)
            size = map_size(spaces, len(options.mults))
            self.images = ImageDecoder(keys[1], options, rssm, size, channels)

    def predict(self, state: State, kernels: bool = False) -> dict[str, Array]:
        """Per key what `losses` understands: pixels' logits, values in symlog space, or logits of classes."""
        found: dict[str, Array] = {}
        lead = state.deter.shape[:-1]
        if self.mlp:
            x = self.mlp(jnp.concatenate([flat(state.stoch), state.deter], -1))
            found.update({key: head(x).astype(jnp.float32) for key, head in self.heads.items()})
        if self.images:
            rows = State(
                state.deter.reshape(-1, state.deter.shape[-1]), state.stoch.reshape(-1, *state.stoch.shape[-2:])
            )
            pixels = self.images(rows, kernels)
            start = 0
            for key in image_keys(self.spaces):
                channels = self.spaces[key].shape[-1]
                part = pixels[..., start : start + channels]
                found[key] = part.reshape(*lead, *part.shape[1:])
                start += channels
        return found

    def losses(self, predicted: Mapping[str, Array], obs: Mapping[str, Array]) -> dict[str, Float[Array, "*n"]]:
        """Summed over the elements of each key."""
        return {key: self._loss(self.spaces[key], predicted[key], obs[key]) for key in self.spaces}

    def _loss(self, space: Space, predicted: Array, target: Array) -> Array:
        axes = tuple(range(target.ndim - len(space.shape), target.ndim))
        if is_image(space):
            error = jax.nn.sigmoid(predicted.astype(jnp.float32)) - target.astype(jnp.float32) / 255
            return jnp.sum(jnp.square(error), axes)
        missing = is_missing(space, target)
        lead = missing.shape
        if not space.discrete:
            wanted = target.reshape(*lead, -1).astype(jnp.float32)
            wanted = jnp.where(missing[..., None], 0.0, symlog(wanted) if self.options.symlog else wanted)
            return jnp.where(missing, 0.0, jnp.sum(jnp.square(predicted - wanted), -1))
        log_probs = jax.nn.log_softmax(by_element(space, predicted))
        index = target.reshape(*lead, -1).astype(jnp.int32) - space.low.reshape(-1)
        hit = index[..., None] == jnp.arange(log_probs.shape[-1])
        return jnp.where(missing, 0.0, -jnp.sum(jnp.where(hit, log_probs, 0.0), (-2, -1)))
