"""The rewritten convolutions compute what the plain ones compute."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.model.convolution import pool_by_blocks_silu, pool_plain_silu, upsample_by_phases, upsample_plain
from dreamfleet.model.layers import Conv, Norm
from support import dreamer_reference as ref
from support.tiny_dreamer import lively

SHAPES = [(1, 4, 4, 1, 2), (2, 6, 4, 3, 2), (1, 12, 8, 2, 5), (3, 2, 2, 4, 1)]
Map = Callable[[Conv, jax.Array], jax.Array]


def make(shape: tuple[int, ...]) -> tuple[Conv, jax.Array]:
    n, height, breadth, inputs, outputs = shape
    x = np.random.default_rng(0).standard_normal((n, height, breadth, inputs))
    return lively(lambda key: Conv(key, inputs, outputs, 5)), jnp.asarray(x, jnp.float32)


def make_norm(conv: Conv) -> Norm:
    return lively(lambda _: Norm(conv.kernel.shape[-1]))


def pool_plain(conv: Conv, x: jax.Array) -> jax.Array:
    return pool_plain_silu(conv, make_norm(conv), x, kernels=False)


def pool_by_blocks(conv: Conv, x: jax.Array) -> jax.Array:
    return pool_by_blocks_silu(conv, make_norm(conv), x, kernels=False)


@pytest.mark.parametrize("shape", SHAPES)
def test_pooling_is_a_convolution_a_maximum_a_norm_and_silu(shape: tuple[int, ...]) -> None:
    conv, x = make(shape)
    pooled = ref.max_pool(ref.convolve(conv, np.asarray(x)))
    expected = ref.silu(ref.rms_norm(pooled, make_norm(conv).scale))
    for pool in (pool_plain, pool_by_blocks):
        np.testing.assert_allclose(pool(conv, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_upsampling_repeats_pixels_and_convolves(shape: tuple[int, ...]) -> None:
    conv, x = make(shape)
    expected = ref.convolve(conv, ref.upsample(np.asarray(x)))
    for up in (upsample_plain, upsample_by_phases):
        np.testing.assert_allclose(up(conv, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pair", [(pool_by_blocks, pool_plain), (upsample_by_phases, upsample_plain)])
@pytest.mark.parametrize("shape", SHAPES[1:3])
def test_gradients_are_those_of_the_plain_pair(pair: tuple[Map, Map], shape: tuple[int, ...]) -> None:
    conv, x = make(shape)
    weight = jnp.asarray(np.random.default_rng(1).standard_normal(pair[1](conv, x).shape), jnp.float32)

    def gradients(layer: Map) -> tuple[Conv, jax.Array]:
        return jax.jit(jax.grad(lambda conv, x: jnp.sum(weight * layer(conv, x)), (0, 1)))(conv, x)

    for fast, plain in zip(jax.tree.leaves(gradients(pair[0])), jax.tree.leaves(gradients(pair[1])), strict=True):
        np.testing.assert_allclose(fast, plain, rtol=1e-5, atol=2e-5)
