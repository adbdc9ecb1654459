"""The kernels against plain layers, interpreted on the CPU in float32."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from dreamfleet.model import convolution
from dreamfleet.model.kernels.norm import (
    NormTiling,
    RowTiling,
    Tilings,
    bias_norm_silu,
    phases_norm_silu,
    pool_norm_silu,
)
from dreamfleet.model.layers import Conv, Norm, add_bias, norm_silu

ONE, SEVERAL = NormTiling(512, 4), NormTiling(512, 4, 2, programs=1)
TILINGS = Tilings(forward=ONE, backward=SEVERAL, pool=ONE, pool_backward=SEVERAL, interpret=True)
SINGLE = Tilings(forward=ONE, backward=ONE, pool=ONE, pool_backward=ONE, interpret=True)
# Rows of a tile: 16, 8, 1. What is padded: nothing, columns and rows, columns.
SHAPES = [(2, 4, 6, 32), (1, 3, 5, 48), (1, 1, 3, 384)]

Layer = Callable[[Array, Array, Array], Array]


def spread(y: Array) -> Array:
    n, h, w, _ = y.shape
    return y.reshape(n, h, w, 2, 2, -1).transpose(0, 1, 3, 2, 4, 5).reshape(n, 2 * h, 2 * w, -1)


def plain_norm(y: Array, bias: Array, scale: Array) -> Array:
    return norm_silu(add_bias(y.reshape(-1, bias.size), bias), scale)


def plain_phases(y: Array, bias: Array, scale: Array) -> Array:
    return norm_silu(add_bias(spread(y), bias), scale)


def plain_pool(y: Array, bias: Array, scale: Array) -> Array:
    return norm_silu(add_bias(convolution.largest_part(y), bias), scale)


def make_case(shape: tuple[int, int, int, int]) -> tuple[Array, Array, Array]:
    """What a convolution may leave; of coarse steps, so that some parts are equal."""
    *lead, channels = shape
    random = np.random.default_rng(channels)
    y = np.round(2 * random.normal(size=(*lead, 4 * channels))) / 2
    bias, scale = random.normal(size=channels), 1 + 0.3 * random.normal(size=channels)
    return jnp.asarray(y, jnp.float32), jnp.asarray(bias, jnp.float32), jnp.asarray(scale, jnp.float32)


def outcome(layer: Layer, given: tuple[Array, Array, Array]) -> list[Array]:
    """The result and all gradients of some function of it."""
    out, pull = jax.vjp(layer, *given)
    return [out, *pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype).reshape(out.shape)))]


def assert_same(plain: Layer, kernel: Layer, given: tuple[Array, Array, Array]) -> None:
    both = jax.jit(lambda given: [outcome(layer, given) for layer in (plain, kernel)])
    for wanted, found in zip(*both(given), strict=True):
        assert wanted.shape == found.shape and wanted.dtype == found.dtype
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * float(jnp.abs(wanted).max()))


@pytest.mark.parametrize("shape", SHAPES)
def test_largest_part_with_norm_is_that_of_plain_layers(shape: tuple[int, int, int, int]) -> None:
    assert_same(plain_pool, lambda *given: pool_norm_silu(*given, TILINGS), make_case(shape))


@pytest.mark.parametrize(("shape", "tilings"), [(SHAPES[0], TILINGS), (SHAPES[1], SINGLE)])
def test_norm_of_phases_is_in_the_order_of_the_image(shape: tuple[int, int, int, int], tilings: Tilings) -> None:
    assert_same(plain_phases, lambda *given: phases_norm_silu(*given, tilings), make_case(shape))


def test_norm_with_bias_is_that_of_plain_layers() -> None:
    def kernel(y: Array, bias: Array, scale: Array) -> Array:
        return bias_norm_silu(y.reshape(-1, bias.size), bias, scale, TILINGS)

    assert_same(plain_norm, kernel, make_case(SHAPES[1]))


def test_of_equal_parts_the_first_gets_the_gradient() -> None:
    y, bias, scale = make_case((1, 1, 1, 32))
    run = jax.jit(lambda given: outcome(lambda *given: pool_norm_silu(*given, SINGLE), given))
    grad = run((jnp.ones_like(y), bias, scale))[1]
    assert np.all(np.asarray(grad)[..., 32:] == 0)
    assert np.all(np.asarray(grad)[..., :32] != 0)


@pytest.mark.parametrize(
    "layer",
    [
        convolution.pool_plain_silu,
        convolution.pool_by_blocks_silu,
        convolution.upsample_plain_silu,
        convolution.upsample_by_phases_silu,
    ],
)
def test_layers_with_kernels_are_those_without(
    layer: Callable[[Conv, Norm, Array, bool], Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bias_norm_silu", "phases_norm_silu", "pool_norm_silu"):
        kernel = getattr(convolution, name)
        monkeypatch.setattr(convolution, name, lambda *given, kernel=kernel: kernel(*given, SINGLE))
    monkeypatch.setattr(convolution, "use_kernels", lambda x, channels: True)
    keys = jax.random.split(jax.random.key(0), 2)
    conv, norm, x = Conv(keys[0], 3, 16, 5), Norm(16), jax.random.normal(keys[1], (2, 4, 6, 3))
    found, wanted = jax.jit(lambda x: [layer(conv, norm, x, kernels) for kernels in (True, False)])(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_tile_is_padded_to_a_power_of_two() -> None:
    rows = RowTiling(100, 48, NormTiling(1024, 4, 2, programs=2))
    assert (rows.width, rows.tile, rows.programs, rows.padded) == (64, 16, 4, True)
    assert not RowTiling(64, 32, NormTiling(1024, 4, 2, programs=1)).padded


@pytest.mark.parametrize(("count", "turns"), [(1 << 20, 16), (1 << 18, 16), (1 << 16, 4), (1 << 14, 1), (5, 1)])
def test_few_rows_take_fewer_turns(count: int, turns: int) -> None:
    channels = 32 if count == 1 << 20 else 64
    assert RowTiling(count, channels, NormTiling(512, 1, 16)).turns == turns
