"""Linear maps, block-diagonal maps, convolutions and the RMS norm, as modules whose parameters are float32.

A map computes in the dtype of its input and casts its weights to it. The gradient of a weight is accumulated and
returned in float32.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

NORM_EPS = 1e-4
WIDE = 512  # columns that are summed at once
# Of a standard normal cut at +-2: its standard deviation is 0.8796.
TRUNCATED_SCALE = 1.1368


def trunc_normal_in(key: PRNGKeyArray, shape: tuple[int, ...], fan_in: int, outscale: float = 1.0) -> Array:
    scale = outscale * TRUNCATED_SCALE * math.sqrt(1 / fan_in)
    return scale * jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)


@jax.custom_vjp
def matmul(x: Float[Array, "*n a"], kernel: Float[Array, "a b"]) -> Float[Array, "*n b"]:
    """`x @ kernel` in the dtype of `x`; the kernel's gradient is a float32 product over all leading axes at once."""
    return x @ kernel.astype(x.dtype)


def _matmul_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return matmul(x, kernel), (x, kernel)


def _matmul_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, kernel = saved
    flat_x, flat_grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    kernel_grad = jnp.einsum("na,nb->ab", flat_x, flat_grad, preferred_element_type=jnp.float32)
    return grad @ kernel.astype(grad.dtype).T, kernel_grad.astype(kernel.dtype)


matmul.defvjp(_matmul_forward, _matmul_backward)


def by_blocks(x: Float[Array, "*n a"], kernel: Float[Array, "g i o"]) -> Float[Array, "*n b"]:
    """Multiplies each of g equal slices of `x` by its own matrix and joins the results."""
    lead, (g, i, _) = x.shape[:-1], kernel.shape
    blocks = x.reshape(*lead, g, i)
    if jax.default_backend() == "cpu":
        # With the blocks as its second factor a product leaves the rows side by side in memory, as JAX's einsum does
        # here, and what follows would read one number of every row at a time. A GPU chooses for itself.
        product = jax.lax.dot_general(blocks, kernel, (((len(lead) + 1,), (1,)), ((len(lead),), (0,))))
        out = jnp.moveaxis(product, 0, -2)
    else:
        out = jnp.einsum("...gi,gio->...go", blocks, kernel)
    return out.reshape(*lead, -1)


@jax.custom_vjp
def block_matmul(x: Float[Array, "*n a"], kernel: Float[Array, "g i o"]) -> Float[Array, "*n b"]:
    """`by_blocks` in the dtype of `x`; the kernel's gradient is a float32 product over all leading axes at once."""
    return by_blocks(x, kernel.astype(x.dtype))


def _block_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return block_matmul(x, kernel), (x, kernel)


def _block_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, kernel = saved
    g, i, o = kernel.shape
    x_grad = by_blocks(grad, kernel.swapaxes(1, 2).astype(grad.dtype))
    kernel_grad = jnp.einsum(
        "ngi,ngo->gio", x.reshape(-1, g, i), grad.reshape(-1, g, o), preferred_element_type=jnp.float32
    )
    return x_grad, kernel_grad.astype(kernel.dtype)


block_matmul.defvjp(_block_forward, _block_backward)


def unit_norm(x: Float[Array, "*n a"]) -> tuple[Float[Array, "*n a"], Float[Array, "*n 1"]]:
    """`x` over the root of its mean square along the last axis, in float32, and the factor that made it so."""
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + NORM_EPS)
    return wide * inverse, inverse


def unit_norm_gradient(unit: Array, inverse: Array, grad: Array) -> Array:
    """From the gradient at the normed values to the one at their input."""
    return inverse * (grad - unit * jnp.mean(grad * unit, -1, keepdims=True))


def column_sum(x: Float[Array, "*n a"]) -> Float[Array, " a"]:
    """Over all axes but the last, in float32. Narrow columns are summed side by side: few of them keep a GPU idle."""
    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    fold = math.gcd(rows, max(1, WIDE // columns))
    sides = jnp.sum(x.reshape(rows // fold, fold * columns).astype(jnp.float32), 0)
    return jnp.sum(sides.reshape(fold, columns), 0)


@jax.custom_vjp
def add_bias(x: Float[Array, "*n a"], bias: Float[Array, " a"]) -> Float[Array, "*n a"]:
    return x + bias.astype(x.dtype)


def _add_bias_forward(x: Array, bias: Array) -> tuple[Array, None]:
    return add_bias(x, bias), None


def _add_bias_backward(saved: None, grad: Array) -> tuple[Array, Array]:
    return grad, column_sum(grad)


add_bias.defvjp(_add_bias_forward, _add_bias_backward)


@jax.custom_vjp
def norm_silu(x: Float[Array, "*n a"], scale: Float[Array, " a"]) -> Float[Array, "*n a"]:
    """RMS norm and SiLU in float32 throughout. Keeps `x` alone for its gradient and computes the rest again."""
    return jax.nn.silu(unit_norm(x)[0] * scale).astype(x.dtype)


def _norm_silu_forward(x: Array, scale: Array) -> tuple[Array, tuple[Array, Array]]:
    return norm_silu(x, scale), (x, scale)


def _norm_silu_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, scale = saved
    x_grad, normed_grad, unit = norm_silu_gradient(x, scale, grad)
    return x_grad, column_sum(normed_grad * unit)


norm_silu.defvjp(_norm_silu_forward, _norm_silu_backward)


def norm_silu_gradient(x: Array, scale: Array, grad: Array) -> tuple[Array, Array, Array]:
    """The gradient at the input, the gradient at the scaled norm, and the norm without its scale."""
    unit, inverse = unit_norm(x)
    normed = unit * scale
    gate = jax.nn.sigmoid(normed)
    normed_grad = grad.astype(jnp.float32) * gate * (1 + normed * (1 - gate))
    return unit_norm_gradient(unit, inverse, normed_grad * scale).astype(x.dtype), normed_grad, unit


class Linear(eqx.Module):
    kernel: Float[Array, "a b"]
    bias: Float[Array, " b"]

    def __init__(self, key: PRNGKeyArray, inputs: int, outputs: int, outscale: float = 1.0) -> None:
        self.kernel = trunc_normal_in(key, (inputs, outputs), inputs, outscale)
        self.bias = jnp.zeros(outputs, jnp.float32)

    def __call__(self, x: Float[Array, "*n a"]) -> Float[Array, "*n b"]:
        return add_bias(matmul(x, self.kernel), self.bias)


class BlockLinear(eqx.Module):
    kernel: Float[Array, "g i o"]
    bias: Float[Array, " b"]

    def __init__(self, key: PRNGKeyArray, inputs: int, outputs: int, blocks: int) -> None:
        # The full input width, not that of a block, counts as fan-in.
        self.kernel = trunc_normal_in(key, (blocks, inputs // blocks, outputs // blocks), inputs)
        self.bias = jnp.zeros(outputs, jnp.float32)

    def __call__(self, x: Float[Array, "*n a"]) -> Float[Array, "*n b"]:
        return add_bias(block_matmul(x, self.kernel), self.bias)


class Norm(eqx.Module):
    scale: Float[Array, " a"]

    def __init__(self, size: int) -> None:
        self.scale = jnp.ones(size, jnp.float32)

    def silu(self, x: Float[Array, "*n a"]) -> Float[Array, "*n a"]:
        return norm_silu(x, self.scale)


class Dense(eqx.Module):
    """Linear, norm, SiLU."""

    linear: Linear
    norm: Norm

    def __init__(self, key: PRNGKeyArray, inputs: int, outputs: int) -> None:
        self.linear = Linear(key, inputs, outputs)
        self.norm = Norm(outputs)

    def __call__(self, x: Float[Array, "*n a"]) -> Float[Array, "*n b"]:
        return self.norm.silu(self.linear(x))

    def after_linear(self, x: Float[Array, "*n b"]) -> Float[Array, "*n b"]:
        """From the product without its bias."""
        return self.norm.silu(add_bias(x, self.linear.bias))


class MLP(eqx.Module):
    layers: tuple[Dense, ...]

    def __init__(self, key: PRNGKeyArray, inputs: int, units: int, layers: int) -> None:
        keys = jax.random.split(key, layers)
        self.layers = tuple(Dense(keys[i], inputs if i == 0 else units, units) for i in range(layers))

    def __call__(self, x: Float[Array, "*n a"]) -> Float[Array, "*n b"]:
        return self.after_first(self.layers[0].linear(x))

    def after_first(self, x: Float[Array, "*n u"]) -> Float[Array, "*n u"]:
        """From the output of the first linear map, for callers that have a faster way to it."""
        x = self.layers[0].norm.silu(x)
        for layer in self.layers[1:]:
            x = layer(x)
        return x


class Conv(eqx.Module):
    """Square kernel, stride 1, the size kept by padding with zeros; images are [n, height, width, channels]."""

    kernel: Float[Array, "k k a b"]
    bias: Float[Array, " b"]

    def __init__(self, key: PRNGKeyArray, inputs: int, outputs: int, size: int, outscale: float = 1.0) -> None:
        self.kernel = trunc_normal_in(key, (size, size, inputs, outputs), size * size * inputs, outscale)
        self.bias = jnp.zeros(outputs, jnp.float32)

    def __call__(self, x: Float[Array, "n h w a"]) -> Float[Array, "n h w b"]:
        return add_bias(convolve(x, self.kernel), self.bias)


def convolve(x: Float[Array, "n h w a"], kernel: Float[Array, "k l a b"]) -> Float[Array, "n h w b"]:
    """On a GPU with channels filled up to a multiple of 8, which its library would do with passes of their own."""
    outputs = kernel.shape[3]
    if jax.default_backend() == "gpu":
        more_in, more_out = -kernel.shape[2] % 8, -outputs % 8
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, more_in)))
        kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, more_in), (0, more_out)))
    y = jax.lax.conv_general_dilated(
        x, kernel.astype(x.dtype), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y[..., :outputs]
