"""Two pairs of layers rewritten as one smaller convolution each. Both compute what the plain pair computes.

A 5x5 convolution followed by a 2x2 maximum becomes a 3x3 convolution over 2x2 blocks of pixels, which yields the four
values that the maximum chooses from as channels. A 2x upsampling followed by a 5x5 convolution becomes a 3x3
convolution on the small image: each of the four output phases sees only 3x3 different pixels, so that the 25 taps
collapse to 9.

The forms with the norm and SiLU that follow take `kernels`: whether GPU kernels may compute what lies
between two convolutions in one pass, where that pays.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from dreamfleet.model.kernels.norm import bias_norm_silu, phases_norm_silu, pool_norm_silu, use_kernels
from dreamfleet.model.layers import Conv, Norm, add_bias, convolve


def pool_plain_silu(conv: Conv, norm: Norm, x: Float[Array, "n h w a"], kernels: bool) -> Float[Array, "n h2 w2 b"]:
    return _bias_norm_silu(conv, norm, _largest_of_window(convolve(x, conv.kernel)), kernels)


def _largest_of_window(y: Array) -> Array:
    n, h, w, c = y.shape
    return y.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))


def _bias_norm_silu(conv: Conv, norm: Norm, y: Array, kernels: bool) -> Array:
    if kernels and use_kernels(y, norm.scale.size):
        return bias_norm_silu(y, conv.bias, norm.scale)
    return norm.silu(add_bias(y, conv.bias))


def pool_by_blocks_silu(conv: Conv, norm: Norm, x: Float[Array, "n h w a"], kernels: bool) -> Float[Array, "n h2 w2 b"]:
    y = _convolve_blocks(conv, x)
    if kernels and use_kernels(y, norm.scale.size):
        return pool_norm_silu(y, conv.bias, norm.scale)
    return norm.silu(add_bias(largest_part(y), conv.bias))


def _convolve_blocks(conv: Conv, x: Array) -> Array:
    n, h, w, c = x.shape
    blocks = x.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h // 2, w // 2, 4 * c)
    return convolve(blocks, block_kernel(conv.kernel))


@jax.custom_vjp
def largest_part(y: Float[Array, "n h w b4"]) -> Float[Array, "n h w b"]:
    """The largest of four parts that lie one after the other. Of equal ones the first gets the gradient."""
    return _parts(y).max(3)


def _largest_forward(y: Array) -> tuple[Array, Array]:
    parts = _parts(y)
    return parts.max(3), jnp.argmax(parts, 3).astype(jnp.uint8)


def _largest_backward(chosen: Array, grad: Array) -> tuple[Array]:
    spread = jnp.where(chosen[..., None, :] == jnp.arange(4, dtype=jnp.uint8)[:, None], grad[..., None, :], 0)
    return (spread.reshape(*grad.shape[:-1], -1),)


def _parts(y: Array) -> Array:
    return y.reshape(*y.shape[:-1], 4, -1)


largest_part.defvjp(_largest_forward, _largest_backward)


def upsample_plain(conv: Conv, x: Float[Array, "n h w a"]) -> Float[Array, "n h2 w2 b"]:
    return conv(x.repeat(2, 1).repeat(2, 2))


def upsample_plain_silu(conv: Conv, norm: Norm, x: Float[Array, "n h w a"], kernels: bool) -> Float[Array, "n h2 w2 b"]:
    return _bias_norm_silu(conv, norm, convolve(x.repeat(2, 1).repeat(2, 2), conv.kernel), kernels)


def upsample_by_phases(conv: Conv, x: Float[Array, "n h w a"]) -> Float[Array, "n h2 w2 b"]:
    return add_bias(_spread_phases(convolve(x, phase_kernel(conv.kernel))), conv.bias)


def upsample_by_phases_silu(
    conv: Conv, norm: Norm, x: Float[Array, "n h w a"], kernels: bool
) -> Float[Array, "n h2 w2 b"]:
    y = convolve(x, phase_kernel(conv.kernel))
    if kernels and use_kernels(y, norm.scale.size):
        return phases_norm_silu(y, conv.bias, norm.scale)
    return norm.silu(add_bias(_spread_phases(y), conv.bias))


def _spread_phases(y: Array) -> Array:
    n, h, w, _ = y.shape
    return y.reshape(n, h, w, 2, 2, -1).transpose(0, 1, 3, 2, 4, 5).reshape(n, 2 * h, 2 * w, -1)


def block_kernel(kernel: Float[Array, "5 5 a b"]) -> Float[Array, "3 3 a4 b4"]:
    """From (row, column in block, channel) to (row, column in block, channel)."""
    select = jnp.asarray(_block_taps())
    blocks = jnp.einsum("pcay,qdbx,yxio->pqcdiabo", select, select, kernel, precision=jax.lax.Precision.HIGHEST)
    _, _, inputs, outputs = kernel.shape
    return blocks.reshape(3, 3, 4 * inputs, 4 * outputs)


def phase_kernel(kernel: Float[Array, "5 5 a b"]) -> Float[Array, "3 3 a b4"]:
    collect = jnp.asarray(_phase_taps())
    phases = jnp.einsum("apy,bqx,yxio->pqiabo", collect, collect, kernel, precision=jax.lax.Precision.HIGHEST)
    _, _, inputs, outputs = kernel.shape
    return phases.reshape(3, 3, inputs, 4 * outputs)


def _block_taps() -> np.ndarray:
    """Which of five taps (y) leads from pixel c of the neighbouring block p to pixel a of this block."""
    taps = np.zeros((3, 2, 2, 5), np.float32)
    for p, c, a in np.ndindex(3, 2, 2):
        tap = 2 * (p - 1) + c - a + 2
        if 0 <= tap < 5:
            taps[p, c, a, tap] = 1
    return taps


def _phase_taps() -> np.ndarray:
    """Which of five taps (y) fall on the small image's neighbour p when the output's phase is a."""
    taps = np.zeros((2, 3, 5), np.float32)
    for a, tap in np.ndindex(2, 5):
        taps[a, (a + tap - 2) // 2 + 1, tap] = 1
    return taps
