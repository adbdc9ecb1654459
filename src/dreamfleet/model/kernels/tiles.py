"""What the kernels of the recurrent model are made of: the cut of the work, products in chunks, norms within a tile.

A program works on a tile of rows and columns. Sizes of arrays inside a kernel are powers of two, so every axis is cut
into chunks of the largest power of two that divides it, up to a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from dreamfleet.model.layers import NORM_EPS

MIN_TILE = 16  # of a matrix instruction, along each axis
MAX_ROWS = 64
HELD_BYTES = 64 * 1024  # what a program keeps in registers of one operand
FEATURE_CHUNK = 256
PRODUCT_CHUNK = 128
HELD_CHUNK = 512
LOG2_E = math.log2(math.e)

Ref = Any
Index = Any


@dataclass(frozen=True)
class ScanTiling:
    """How the kernels are cut; sizes are upper limits."""

    wide: int = 32  # columns per program where a layer's output is `deter` wide
    narrow: int = 32  # likewise for layers `hidden` wide
    depth: int = 512  # inputs per program where a product over `deter` is split
    latent_depth: int = 512  # likewise over the latents
    warps: int = 8
    stages: int = 5
    light_warps: int = 4  # of the kernels that only multiply


@dataclass(frozen=True)
class KernelPlan:
    """Sizes, padded where need be, and their cut."""

    steps: int
    rows: int
    deter: int
    hidden: int
    blocks: int
    latents: int
    classes: int
    width: int  # of a latent: the classes, padded to a power of two
    unimix: float
    dtype: Any
    tiling: ScanTiling
    interpret: bool

    @property
    def row_tile(self) -> int:
        return chunk_of(self.rows, MAX_ROWS)

    @property
    def block(self) -> int:
        return self.deter // self.blocks

    @property
    def stoch(self) -> int:
        return self.latents * self.width

    @property
    def wide(self) -> int:
        return chunk_of(self.block, self.tiling.wide)

    @property
    def narrow(self) -> int:
        return chunk_of(self.hidden, self.tiling.narrow)

    @property
    def depth(self) -> int:
        return depth_of(self.deter, self.tiling.depth)

    @property
    def latent_depth(self) -> int:
        return depth_of(self.stoch, self.tiling.latent_depth)

    @property
    def feature_chunk(self) -> int:
        return chunk_of(self.hidden, FEATURE_CHUNK)

    @property
    def block_tiles(self) -> int:
        return self.block // self.wide

    @property
    def wide_tiles(self) -> int:
        return self.deter // self.wide

    @property
    def sums(self) -> int:
        """Rows of an array that holds a number per wide tile."""
        return 1 << (self.wide_tiles - 1).bit_length()

    def smallest_tile(self) -> int:
        tiles = (self.wide, self.narrow, self.feature_chunk, self.width, self.row_tile)
        return min(*tiles, *(chunk_of(size, PRODUCT_CHUNK) for size in (self.block, self.depth, self.latent_depth)))


def chunk_of(size: int, most: int) -> int:
    """The largest power of two that divides `size` and is not above `most`."""
    chunk = 1
    while chunk < most and size % (2 * chunk) == 0:
        chunk *= 2
    return chunk


def depth_of(size: int, most: int) -> int:
    """The largest part of `size`, of equal parts, that is not above `most`."""
    return next(size // parts for parts in range(1, size + 1) if size % parts == 0 and size // parts <= most)


def launch(
    plan: KernelPlan,
    kernel: Callable[..., None],
    jobs: int,
    outputs: Sequence[jax.ShapeDtypeStruct],
    aliases: Mapping[int, int] | None = None,
    light: bool = False,
) -> Callable[..., Any]:
    """`jobs` programs for every tile of rows. Inputs and outputs are whole arrays that the kernel cuts itself."""
    warps = plan.tiling.light_warps if light else plan.tiling.warps
    return pl.pallas_call(
        kernel,
        out_shape=tuple(outputs),
        grid=(jobs, plan.rows // plan.row_tile),
        input_output_aliases=dict(aliases or {}),
        interpret=plan.interpret,
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=plan.tiling.stages),
        name=kernel.__name__,
    )


def launch_in_place(
    plan: KernelPlan,
    kernel: Callable[..., None],
    jobs: int,
    inputs: Sequence[Array],
    written: Sequence[Array],
    fresh: Sequence[jax.ShapeDtypeStruct] = (),
    light: bool = False,
) -> tuple[Array, ...]:
    """The kernel is given `written` twice, as inputs and as outputs: they are the same memory."""
    outputs = [*(struct(*x.shape, dtype=x.dtype) for x in written), *fresh]
    aliases = {len(inputs) + i: i for i in range(len(written))}
    return tuple(launch(plan, kernel, jobs, outputs, aliases, light)(*inputs, *written))


def row_range(plan: KernelPlan) -> Any:
    return pl.ds(pl.program_id(1) * plan.row_tile, plan.row_tile)


def struct(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@dataclass(frozen=True)
class Cut:
    """How an axis is cut, and whether its chunks are loaded at once and kept or, being too much, one after the other.

    Loads that are kept begin where they are written, and a weight's wait where it follows: so what is needed first
    is loaded first. Loads within a loop begin some turns ahead.
    """

    size: int
    chunk: int
    hold: bool

    @property
    def count(self) -> int:
        return self.size // self.chunk

    def load(self, load: Callable[[Any], Array]) -> Chunks:
        """`load` is given a range."""
        return Chunks(self, lambda i: load(pl.ds(i * self.chunk, self.chunk)), computed=False)

    def each(self, function: Callable[[Index], Array]) -> Chunks:
        """What is computed from other chunks of an index."""
        return Chunks(self, function, computed=True)


class Chunks:
    """An array that is cut along one axis."""

    def __init__(self, cut: Cut, load: Callable[[Index], Array], computed: bool) -> None:
        self.cut = cut
        self.computed = computed
        self._load = load
        self._held = [load(i) for i in range(cut.count)] if cut.hold else None

    def at(self, index: Index) -> Array:
        return self._held[index] if self._held is not None and isinstance(index, int) else self._load(index)


def product_cut(size: int, columns: int) -> Cut:
    """Of a product over `size` inputs whose first operand is computed."""
    hold = size * columns * 2 <= HELD_BYTES
    return Cut(size, chunk_of(size, HELD_CHUNK if hold else PRODUCT_CHUNK), hold)


def loop_cut(size: int) -> Cut:
    """Of a product whose operands are both loaded."""
    return Cut(size, chunk_of(size, PRODUCT_CHUNK), False)


def shifted(columns: Any, offset: Index) -> Any:
    return pl.ds(offset + columns.start, columns.size)


def across(plan: KernelPlan, ref: Ref, columns: Any) -> Array:
    """A range of a vector as equal rows of a tile; loaded so, as turning it round inside a kernel stalls all warps."""
    index = jax.lax.broadcasted_iota(jnp.int32, (plan.row_tile, columns.size), 1)
    return jnp.asarray(ref[columns.start + index]).astype(jnp.float32)


def down(plan: KernelPlan, ref: Ref, t: Array, rows: Any, columns: int) -> Array:
    """Likewise a number per row at step `t`, of a vector over steps and rows, as equal columns."""
    index = jax.lax.broadcasted_iota(jnp.int32, (plan.row_tile, columns), 0)
    return jnp.asarray(ref[t * plan.rows + rows.start + index]).astype(jnp.float32)


def kept(x: Array, keep: Array) -> Array:
    """Zero where an episode begins, whatever was there."""
    return jnp.where(keep > 0, x, 0.0)


def repeat(cut: Cut, body: Callable[[Index, Any], Any], state: Any) -> Any:
    if not cut.hold:
        return jax.lax.fori_loop(0, cut.count, body, state)
    for i in range(cut.count):
        state = body(i, state)
    return state


def product(left: Chunks, right: Chunks, shape: tuple[int, int], transposed: bool = False) -> Array:
    """In float32. `transposed`: the second operand's chunks lie along its last axis."""
    return products(left, [right], shape, transposed)[0]


def products(left: Chunks, rights: list[Chunks], shape: tuple[int, int], transposed: bool = False) -> list[Array]:
    """One operand times several that are cut alike."""
    numbers = (((1,), (1 if transposed else 0,)), ((), ()))

    def add(i: Index, totals: list[Array]) -> list[Array]:
        x = settled(left.at(i)) if left.computed else left.at(i)
        terms = [jax.lax.dot_general(x, y.at(i), numbers, preferred_element_type=jnp.float32) for y in rights]
        return [total + term for total, term in zip(totals, terms, strict=True)]

    totals: list[Array] = repeat(rights[0].cut, add, [jnp.zeros(shape, jnp.float32) for _ in rights])
    return totals


def feature_cut(plan: KernelPlan, columns: int) -> Cut:
    """Of what is as wide as `hidden`, and multiplied for so many outputs."""
    hold = plan.row_tile * plan.hidden * 4 <= HELD_BYTES // 2 and plan.hidden * columns * 2 <= HELD_BYTES
    return Cut(plan.hidden, plan.feature_chunk, hold)


def sum_parts(ref: Ref, rows: Any, columns: Any) -> Array:
    """Of a split product, whose first axis is the parts."""
    total: Array = ref[0, rows, columns]
    for part in range(1, ref.shape[0]):
        total = total + ref[part, rows, columns]
    return total


def row_sums(plan: KernelPlan, cut: Cut, term: Callable[[Index], Array]) -> Array:
    zero = jnp.zeros((plan.row_tile,), jnp.float32)
    total: Array = repeat(cut, lambda i, total: total + jnp.sum(term(i), -1), zero)
    return total


def inverse_rms(plan: KernelPlan, parts: Chunks) -> Array:
    total = row_sums(plan, parts.cut, lambda i: jnp.square(parts.at(i)))
    return jax.lax.rsqrt(total / plan.hidden + NORM_EPS)[:, None]


def settled(x: Array) -> Array:
    """The same. Keeps the compiler from recomputing `x` in every warp that multiplies it."""
    return jnp.max(x[None], 0)


def sigmoid(x: Array) -> Array:
    """In half the instructions of the usual form, which has a division."""
    return jnp.square(jax.lax.rsqrt(1 + jnp.exp2(x * -LOG2_E)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def silu_slope(x: Array) -> Array:
    gate = sigmoid(x)
    return gate * (1 + x * (1 - gate))


def norm_silu_chunks(plan: KernelPlan, parts: Chunks, scales: Chunks) -> Chunks:
    inverse = inverse_rms(plan, parts)
    return parts.cut.each(lambda i: silu(parts.at(i) * inverse * scales.at(i)).astype(plan.dtype))


def norm_silu_gradient_chunks(plan: KernelPlan, parts: Chunks, grads: Chunks, scales: Chunks) -> tuple[Chunks, Chunks]:
    """The gradients at the scaled norm and at its input, from that at the activation."""
    cut, inverse = parts.cut, inverse_rms(plan, parts)
    unit = cut.each(lambda i: parts.at(i) * inverse)
    normed = cut.each(lambda i: grads.at(i) * silu_slope(unit.at(i) * scales.at(i)))
    total = row_sums(plan, cut, lambda i: normed.at(i) * scales.at(i) * unit.at(i))
    mean = (total / plan.hidden)[:, None]

    def at_input(i: Index) -> Array:
        return (inverse * (normed.at(i) * scales.at(i) - unit.at(i) * mean)).astype(plan.dtype)

    return normed, cut.each(at_input)


def share_out(chunks: Chunks, job: Array, jobs: int, store: Callable[[Any, Array], None]) -> None:
    """All of `jobs` programs hold the same chunks; each chunk is stored by one of them."""
    for i in range(chunks.cut.count):
        pl.when(job == i % jobs)(partial(_store, chunks, i, store))


def _store(chunks: Chunks, index: int, store: Callable[[Any, Array], None]) -> None:
    store(pl.ds(index * chunks.cut.chunk, chunks.cut.chunk), chunks.at(index))


def divided(job: Array, count: int) -> tuple[Array, Array]:
    """Quotient and remainder of what is not negative."""
    size = jnp.asarray(count, job.dtype)
    return jax.lax.div(job, size), jax.lax.rem(job, size)
