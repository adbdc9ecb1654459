"""GPU kernels for what lies between two convolutions: choice of the largest, bias, norm and SiLU, in one pass each way.

Memory bounds all of them: a kernel reads what a convolution left and writes what the next one takes, or the other way
round for gradients. Arithmetic is in float32. `convolution` decides when to use them; the plain form of the same
functions is there and in `layers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Float

from dreamfleet.model.kernels.tiles import Ref, sigmoid, silu, struct
from dreamfleet.model.layers import NORM_EPS, column_sum

PARTS = 4
PACKED = 8  # choices of a part in a word
MIN_SIZE = 2**22  # elements of the input: the fewest that were measured, twice as fast as XLA's own kernels
MAX_SIZE = 2**30  # an offset is an int32, and that of padding lies beyond the end


@dataclass(frozen=True)
class NormTiling:
    """How a kernel is cut."""

    elements: int  # of a tile, padding included
    warps: int
    turns: int = 1  # tiles per program, one after the other, at most
    programs: int = 2048  # with fewer, a program takes fewer turns


@dataclass(frozen=True)
class Tilings:
    """The best of a dozen each on an H200 with 32 and 48 channels."""

    forward: NormTiling = NormTiling(4096, 4)
    backward: NormTiling = NormTiling(512, 1, 16)
    pool: NormTiling = NormTiling(1024, 4)
    pool_backward: NormTiling = NormTiling(2048, 4)
    interpret: bool = False


DEFAULT = Tilings()


def use_kernels(x: Array, channels: int) -> bool:
    return (
        jax.default_backend() == "gpu"
        and x.dtype == jnp.bfloat16
        and channels % PACKED == 0
        and MIN_SIZE <= x.size < MAX_SIZE
    )


@dataclass(frozen=True)
class RowTiling:
    """The rows of a problem and their cut. Tiles are powers of two: columns are padded, and so is the last tile."""

    count: int
    channels: int
    tiling: NormTiling

    @property
    def width(self) -> int:
        return 1 << (self.channels - 1).bit_length()

    @property
    def tile(self) -> int:
        return max(1, self.tiling.elements // self.width)

    @property
    def turns(self) -> int:
        turns = self.tiling.turns
        while turns > 1 and self.count < self.tile * turns * self.tiling.programs:
            turns //= 2
        return turns

    @property
    def programs(self) -> int:
        return -(-self.count // (self.tile * self.turns))

    @property
    def padded(self) -> bool:
        return self.width != self.channels or self.programs * self.turns * self.tile != self.count


class TilePosition(NamedTuple):
    """Where a tile lies: per row a pixel in the order of the output, and which elements are no padding."""

    pixel: Array
    column: Array
    mask: Array | None

    def of(self, pixel: Array, channels: int) -> Array:
        return pixel[:, None] * channels + self.column


def _place(rows: RowTiling, tile: Array) -> TilePosition:
    pixel = tile * rows.tile + jax.lax.iota(jnp.int32, rows.tile)
    column = jax.lax.broadcasted_iota(jnp.int32, (rows.tile, rows.width), 1)
    mask = (column < rows.channels) & (pixel < rows.count)[:, None] if rows.padded else None
    return TilePosition(pixel, column, mask)


def _load(ref: Ref, index: Array, mask: Array | None) -> Array:
    other = None if mask is None else 0
    return jnp.asarray(plgpu.load(ref.at[index], mask=mask, other=other))


def _load_vector(rows: RowTiling, ref: Ref) -> Array:
    index = jax.lax.iota(jnp.int32, rows.width)
    mask = index < rows.channels if rows.padded else None
    return _load(ref, index, mask).astype(jnp.float32)[None]


def _store(ref: Ref, index: Array, value: Array, mask: Array | None) -> None:
    plgpu.store(ref.at[index], value.astype(ref.dtype), mask=mask)


def _inverse_rms(rows: RowTiling, x: Array) -> Array:
    """Padded columns are zero, so that they count for nothing here."""
    return jax.lax.rsqrt(jnp.sum(jnp.square(x), 1, keepdims=True) / rows.channels + NORM_EPS)


class Slopes(NamedTuple):
    at_input: Array
    at_scale: Array  # per row


def _slopes(rows: RowTiling, x: Array, scale: Array, grad: Array) -> Slopes:
    """Gradients of `silu(rms(x) * scale)`."""
    inverse = _inverse_rms(rows, x)
    unit = x * inverse
    normed = unit * scale
    gate = sigmoid(normed)
    normed_grad = grad * gate * (1 + normed * (1 - gate))
    unit_grad = normed_grad * scale
    mean = jnp.sum(unit_grad * unit, 1, keepdims=True) / rows.channels
    return Slopes(inverse * (unit_grad - unit * mean), normed_grad * unit)


def _sum_tiles(
    rows: RowTiling, load: Callable[[TilePosition], Any], work: Callable[[TilePosition, Any], Slopes], sums: Ref
) -> None:
    """Of every tile's gradients at the input and at the scale, the sum over rows.

    A tile is loaded while the one before it is worked on.
    """
    turns = rows.turns
    program = pl.program_id(0)
    first = program * turns

    def step(turn: Any, state: tuple[Any, Slopes]) -> tuple[Any, Slopes]:
        loaded, totals = state
        ahead = load(_place(rows, first + jnp.minimum(turn + 1, turns - 1)))
        found = work(_place(rows, first + turn), loaded)
        return ahead, Slopes(totals.at_input + found.at_input, totals.at_scale + found.at_scale)

    loaded = load(_place(rows, first))
    if turns == 1:
        totals = work(_place(rows, first), loaded)
    else:
        zero = jnp.zeros((rows.tile, rows.width), jnp.float32)
        _, totals = jax.lax.fori_loop(0, turns, step, (loaded, Slopes(zero, zero)))
    column = jax.lax.iota(jnp.int32, rows.width)
    mask = column < rows.channels if rows.padded else None
    for i, total in enumerate(totals):
        _store(sums, (2 * program + i) * rows.channels + column, jnp.sum(total, 0), mask)


def _launch(rows: RowTiling, kernel: Callable[..., None], outputs: list[Any], interpret: bool) -> Callable[..., Any]:
    """Arrays are flat, and the kernel finds its own way in them."""
    return pl.pallas_call(
        kernel,
        out_shape=tuple(outputs),
        grid=(rows.programs,),
        interpret=interpret,
        compiler_params=plgpu.CompilerParams(num_warps=rows.tiling.warps, num_stages=1),
        name=kernel.__name__,
    )


def _sums(rows: RowTiling) -> Any:
    return struct(rows.programs * 2 * rows.channels)


def _sum_programs(rows: RowTiling, sums: Array, bias: Array, scale: Array) -> tuple[Array, Array]:
    total = column_sum(sums.reshape(rows.programs, 2 * rows.channels))
    return total[: rows.channels].astype(bias.dtype), total[rows.channels :].astype(scale.dtype)


def bias_norm_silu(
    x: Float[Array, "*n a"], bias: Float[Array, " a"], scale: Float[Array, " a"], tilings: Tilings = DEFAULT
) -> Float[Array, "*n a"]:
    """`norm_silu(x + bias, scale)`."""
    return _norm(x.reshape(-1), bias, scale, 0, tilings).reshape(x.shape)


def phases_norm_silu(
    y: Float[Array, "n h w a4"], bias: Float[Array, " a"], scale: Float[Array, " a"], tilings: Tilings = DEFAULT
) -> Float[Array, "n h2 w2 a"]:
    """Likewise of what a convolution by phases left, put in the order of the upsampled image."""
    n, h, w, c = y.shape
    return _norm(y.reshape(-1), bias, scale, w, tilings).reshape(n, 2 * h, 2 * w, c // 4)


def pool_norm_silu(
    y: Float[Array, "*n a4"], bias: Float[Array, " a"], scale: Float[Array, " a"], tilings: Tilings = DEFAULT
) -> Float[Array, "*n a"]:
    """`norm_silu(largest_part(y) + bias, scale)`."""
    return _pool(y.reshape(-1), bias, scale, tilings).reshape(*y.shape[:-1], -1)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _norm(x: Array, bias: Array, scale: Array, width: int, tilings: Tilings) -> Array:
    """With a `width`, `x` is in the order of a convolution by phases of images that wide."""
    rows = RowTiling(x.size // scale.size, scale.size, tilings.forward)

    def norm_forward(x: Ref, bias: Ref, scale: Ref, out: Ref) -> None:
        shift, factor = _load_vector(rows, bias), _load_vector(rows, scale)

        place = _place(rows, pl.program_id(0))
        value = _load(x, place.of(_source(place.pixel, width), rows.channels), place.mask)
        value = value.astype(jnp.float32) + shift
        value = silu(value * _inverse_rms(rows, value) * factor)
        _store(out, place.of(place.pixel, rows.channels), value, place.mask)

    call = _launch(rows, norm_forward, [struct(x.size, dtype=x.dtype)], tilings.interpret)
    result: Array = call(x, bias, scale)[0]
    return result


def _norm_forward(x: Array, bias: Array, scale: Array, width: int, tilings: Tilings) -> tuple[Array, Any]:
    return _norm(x, bias, scale, width, tilings), (x, bias, scale)


def _norm_backward(width: int, tilings: Tilings, saved: Any, grad: Array) -> tuple[Array, Array, Array]:
    x, bias, scale = saved
    rows = RowTiling(x.size // scale.size, scale.size, tilings.backward)

    def norm_backward(x: Ref, bias: Ref, scale: Ref, grad: Ref, x_grad: Ref, sums: Ref) -> None:
        shift, factor = _load_vector(rows, bias), _load_vector(rows, scale)

        def load(place: TilePosition) -> tuple[Array, Array]:
            value = _load(x, place.of(place.pixel, rows.channels), place.mask)
            return value, _load(grad, place.of(_target(place.pixel, width), rows.channels), place.mask)

        def work(place: TilePosition, given: tuple[Array, Array]) -> Slopes:
            value, above = (part.astype(jnp.float32) for part in given)
            slopes = _slopes(rows, value + shift, factor, above)
            _store(x_grad, place.of(place.pixel, rows.channels), slopes.at_input, place.mask)
            return slopes

        _sum_tiles(rows, load, work, sums)

    outputs = [struct(x.size, dtype=x.dtype), _sums(rows)]
    x_grad, sums = _launch(rows, norm_backward, outputs, tilings.interpret)(x, bias, scale, grad)
    return (x_grad, *_sum_programs(rows, sums, bias, scale))


_norm.defvjp(_norm_forward, _norm_backward)


def _source(pixel: Array, width: int) -> Array:
    """Where a convolution by phases left a pixel of the upsampled image; `width` is that before upsampling.

    The convolution's order is image and line, column, phase of line, phase of column.
    """
    if not width:
        return pixel
    line, column = _divided(pixel, 2 * width)
    line, line_phase = _divided(line, 2)
    column, column_phase = _divided(column, 2)
    return ((line * width + column) * 2 + line_phase) * 2 + column_phase


def _target(pixel: Array, width: int) -> Array:
    """The inverse of `_source`."""
    if not width:
        return pixel
    block, phase = _divided(pixel, 4)
    line, column = _divided(block, width)
    line_phase, column_phase = _divided(phase, 2)
    return ((line * 2 + line_phase) * width + column) * 2 + column_phase


def _divided(x: Array, by: int) -> tuple[Array, Array]:
    """Quotient and remainder of what is not negative."""
    size = jnp.asarray(by, x.dtype)
    return jax.lax.div(x, size), jax.lax.rem(x, size)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _pool(y: Array, bias: Array, scale: Array, tilings: Tilings) -> Array:
    return _pool_forward(y, bias, scale, tilings)[0]


def _pool_forward(y: Array, bias: Array, scale: Array, tilings: Tilings) -> tuple[Array, Any]:
    size = y.size // PARTS
    rows = RowTiling(size // scale.size, scale.size, tilings.pool)

    def pool_forward(y: Ref, bias: Ref, scale: Ref, out: Ref, best: Ref, chosen: Ref) -> None:
        shift, factor = _load_vector(rows, bias), _load_vector(rows, scale)

        place = _place(rows, pl.program_id(0))
        parts = [_load(y, place.of(place.pixel * PARTS + i, rows.channels), place.mask) for i in range(PARTS)]
        largest, which = _largest(parts)
        value = largest.astype(jnp.float32) + shift
        value = silu(value * _inverse_rms(rows, value) * factor)
        here = place.of(place.pixel, rows.channels)
        _store(out, here, value, place.mask)
        _store(best, here, largest, place.mask)
        _store_packed(rows, place, chosen, which)

    outputs = [struct(size, dtype=y.dtype), struct(size, dtype=y.dtype), struct(size // PACKED, dtype=jnp.uint16)]
    out, best, chosen = _launch(rows, pool_forward, outputs, tilings.interpret)(y, bias, scale)
    return out, (best, chosen, bias, scale)


def _largest(parts: list[Array]) -> tuple[Array, Array]:
    """Of equal ones the first."""
    best, which = parts[0], jnp.zeros(parts[0].shape, jnp.int32)
    for i, part in enumerate(parts[1:], 1):
        which = jnp.where(part > best, i, which)
        best = jnp.maximum(best, part)
    return best, which


def _words(rows: RowTiling, place: TilePosition) -> tuple[Array, Array | None]:
    column = jax.lax.broadcasted_iota(jnp.int32, (rows.tile, rows.width // PACKED), 1)
    mask = (column < rows.channels // PACKED) & (place.pixel < rows.count)[:, None] if rows.padded else None
    return place.pixel[:, None] * (rows.channels // PACKED) + column, mask


def _shifts(rows: RowTiling) -> Array:
    return 2 * jax.lax.broadcasted_iota(jnp.int32, (rows.tile, rows.width // PACKED, PACKED), 2)


def _store_packed(rows: RowTiling, place: TilePosition, ref: Ref, which: Array) -> None:
    """Two bits per element, those of neighbouring channels in a word."""
    index, mask = _words(rows, place)
    bits = jax.lax.shift_left(which.reshape(rows.tile, -1, PACKED), _shifts(rows))
    _store(ref, index, jnp.sum(bits, 2), mask)


def _load_packed(rows: RowTiling, place: TilePosition, ref: Ref) -> Array:
    index, mask = _words(rows, place)
    return _load(ref, index, mask)


def _unpack(rows: RowTiling, words: Array) -> Array:
    shifts = _shifts(rows)
    spread = jnp.broadcast_to(words.astype(jnp.int32)[:, :, None], shifts.shape)
    return (jax.lax.shift_right_logical(spread, shifts) & 3).reshape(rows.tile, rows.width)


def _pool_backward(tilings: Tilings, saved: Any, grad: Array) -> tuple[Array, Array, Array]:
    best, chosen, bias, scale = saved
    rows = RowTiling(best.size // scale.size, scale.size, tilings.pool_backward)

    def pool_backward(best: Ref, chosen: Ref, bias: Ref, scale: Ref, grad: Ref, y_grad: Ref, sums: Ref) -> None:
        shift, factor = _load_vector(rows, bias), _load_vector(rows, scale)

        def load(place: TilePosition) -> tuple[Array, Array, Array]:
            here = place.of(place.pixel, rows.channels)
            return _load(best, here, place.mask), _load(grad, here, place.mask), _load_packed(rows, place, chosen)

        def work(place: TilePosition, given: tuple[Array, Array, Array]) -> Slopes:
            value, above = (part.astype(jnp.float32) for part in given[:2])
            slopes = _slopes(rows, value + shift, factor, above)
            which, narrow = _unpack(rows, given[2]), slopes.at_input.astype(y_grad.dtype)
            for i in range(PARTS):
                part = jnp.where(which == i, narrow, jnp.zeros_like(narrow))
                _store(y_grad, place.of(place.pixel * PARTS + i, rows.channels), part, place.mask)
            return slopes

        _sum_tiles(rows, load, work, sums)

    outputs = [struct(PARTS * best.size, dtype=best.dtype), _sums(rows)]
    y_grad, sums = _launch(rows, pool_backward, outputs, tilings.interpret)(best, chosen, bias, scale, grad)
    return (y_grad, *_sum_programs(rows, sums, bias, scale))


_pool.defvjp(_pool_forward, _pool_backward)
