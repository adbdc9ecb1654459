"""Linear maps, norms and convolutions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.model.layers import BlockLinear, Conv, Dense, Linear, Norm, norm_silu, trunc_normal_in
from support import dreamer_reference as ref
from support.tiny_dreamer import lively

KEY = jax.random.key(0)


def draw(*shape: int, seed: int = 1) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def test_norm_and_silu_over_the_last_axis() -> None:
    x, scale = 3 * draw(2, 4, 5), draw(5, seed=2)
    expected = ref.silu(ref.rms_norm(np.asarray(x), scale))
    np.testing.assert_allclose(norm_silu(x, scale), expected, rtol=1e-5, atol=1e-6)


def test_norm_of_zeros_is_zero() -> None:
    assert (np.asarray(Norm(4).silu(jnp.zeros((2, 4)))) == 0).all()


def test_norm_computes_in_float32_and_returns_the_dtype_of_its_input() -> None:
    x = (300 * draw(8, 64)).astype(jnp.float16)  # squares overflow float16
    out = norm_silu(x, jnp.ones(64))
    assert out.dtype == jnp.float16
    np.testing.assert_allclose(out.astype(jnp.float32), ref.silu(ref.rms_norm(np.asarray(x), np.ones(64))), atol=2e-3)


def test_gradients_of_norm_and_silu_are_those_of_the_plain_form() -> None:
    x, scale, weight = draw(3, 4, 6), draw(6, seed=2), draw(3, 4, 6, seed=3)

    def plain(x: jax.Array, scale: jax.Array) -> jax.Array:
        normed = x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-4) * scale
        return jnp.sum(weight * normed * jax.nn.sigmoid(normed))

    fast = jax.grad(lambda x, scale: jnp.sum(weight * norm_silu(x, scale)), (0, 1))(x, scale)
    for a, b in zip(fast, jax.grad(plain, (0, 1))(x, scale), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_linear_and_dense() -> None:
    layer = lively(lambda key: Dense(key, 5, 7))
    x = draw(2, 3, 5)
    np.testing.assert_allclose(layer.linear(x), ref.linear(layer.linear, np.asarray(x)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer(x), ref.dense(layer, np.asarray(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_block_linear_keeps_blocks_apart(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    layer = lively(lambda key: BlockLinear(key, 8, 12, 4))
    x = draw(3, 8)
    np.testing.assert_allclose(layer(x), ref.block_linear(layer, np.asarray(x)), rtol=1e-5, atol=1e-6)
    moved = layer(x.at[:, 2:4].add(1.0)) - layer(x)  # the second slice of the input
    touched = np.abs(np.asarray(moved)).max(0) > 0
    assert touched.tolist() == [False] * 3 + [True] * 3 + [False] * 6


def test_conv_pads_with_zeros() -> None:
    layer = lively(lambda key: Conv(key, 2, 3, 5))
    x = draw(2, 4, 6, 2)
    np.testing.assert_allclose(layer(x), ref.convolve(layer, np.asarray(x)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make", [lambda key: Linear(key, 6, 4), lambda key: BlockLinear(key, 6, 4, 2)], ids=["plain", "block"]
)
def test_gradients_of_maps_are_those_of_a_float64_product(make: Any) -> None:
    layer: Any = lively(make)
    x, weight = draw(3, 5, 6), draw(3, 5, 4, seed=3)
    layer_grad, x_grad = jax.grad(lambda layer, x: jnp.sum(weight * layer(x)), (0, 1))(layer, x)
    kernel = np.asarray(layer.kernel, np.float64)
    blocks = kernel if kernel.ndim == 3 else kernel[None]
    g, i, o = blocks.shape
    flat_x, flat_w = np.asarray(x, np.float64).reshape(-1, g, i), np.asarray(weight, np.float64).reshape(-1, g, o)
    expected = np.zeros_like(blocks)
    for row, block in np.ndindex(len(flat_x), g):
        expected[block] += np.outer(flat_x[row, block], flat_w[row, block])
    np.testing.assert_allclose(layer_grad.kernel, expected.reshape(kernel.shape), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer_grad.bias, flat_w.reshape(-1, g * o).sum(0), rtol=1e-5, atol=1e-5)
    back = np.stack([flat_w[:, block] @ blocks[block].T for block in range(g)], 1)
    np.testing.assert_allclose(x_grad, back.reshape(x.shape), rtol=1e-5, atol=1e-5)


MAPS = {
    "linear": (lambda key: Linear(key, 4, 3), (16384, 4)),
    "block": (lambda key: BlockLinear(key, 4, 4, 2), (16384, 4)),
    "conv": (lambda key: Conv(key, 1, 3, 5), (64, 16, 16, 1)),
}


@pytest.mark.parametrize("kind", MAPS)
def test_weight_gradients_of_bfloat16_maps_are_summed_in_float32(kind: str) -> None:
    """16384 ones, one after the other in bfloat16, stop at 256."""
    make, shape = MAPS[kind]
    layer: Any = lively(make)
    x = jnp.ones(shape, jnp.bfloat16)
    grad = jax.jit(jax.grad(lambda layer: jnp.sum(layer(x).astype(jnp.float32))))(layer)
    assert grad.bias.dtype == jnp.float32
    np.testing.assert_allclose(grad.bias, 16384, rtol=1e-3)
    # The corner of a kernel misses what lies outside of the image; its centre sees every pixel.
    centre = grad.kernel[2, 2] if kind == "conv" else grad.kernel
    np.testing.assert_allclose(centre, 16384, rtol=1e-3)


def test_initial_weights_have_the_fan_in_of_the_whole_input() -> None:
    def spread(kernel: jax.Array, fan_in: int) -> float:
        return float(jnp.std(kernel)) * np.sqrt(fan_in)

    assert spread(Linear(KEY, 256, 128).kernel, 256) == pytest.approx(1.0, abs=0.02)
    assert spread(BlockLinear(KEY, 256, 256, 8).kernel, 256) == pytest.approx(1.0, abs=0.03)
    assert spread(Conv(KEY, 16, 64, 5).kernel, 5 * 5 * 16) == pytest.approx(1.0, abs=0.02)


def test_initial_weights_are_cut_at_two_deviations() -> None:
    kernel = trunc_normal_in(KEY, (100_000,), 4, 0.5)
    largest = float(jnp.abs(kernel).max())
    assert largest == pytest.approx(2 * 1.1368 * 0.5 * 0.5, rel=1e-3)


def test_biases_start_at_zero_scales_at_one_and_an_outscale_of_zero_gives_zeros() -> None:
    layer = Dense(KEY, 3, 4)
    assert (np.asarray(layer.linear.bias) == 0).all()
    assert (np.asarray(layer.norm.scale) == 1).all()
    assert (np.asarray(Linear(KEY, 3, 4, 0.0).kernel) == 0).all()
