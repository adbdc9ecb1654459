"""One step of the recurrent model in five kernels.

    project_state   the last state, masked -> inputs of both feature norms (split sums), blocks' share of the hidden
    mix_features    norms of the features, the product all blocks share -> input of the hidden norm
    update_deter    hidden norm, gates, GRU -> the new `deter`
    project_deter   the new `deter` -> input of the posterior's norm (split sums)
    sample_latents  posterior's norm, logits, sample

Arrays over time are written in place at the step's index; those of `deter` and `stoch` begin with the initial state.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from dreamfleet.model.kernels.tiles import (
    Chunks,
    KernelPlan,
    Ref,
    across,
    divided,
    down,
    feature_cut,
    kept,
    launch,
    launch_in_place,
    loop_cut,
    norm_silu_chunks,
    product,
    product_cut,
    products,
    row_range,
    share_out,
    shifted,
    sigmoid,
    silu,
    struct,
    sum_parts,
)
from dreamfleet.model.layers import NORM_EPS
from dreamfleet.model.rssm import UPDATE_BIAS


class History(NamedTuple):
    """What the loop writes, over time. Inputs of the narrow norms are in float32, like the split sums."""

    deter: Array  # [t + 1, n, d]
    stoch: Array  # [t + 1, n, sc]
    logits: Array
    pre_deter: Array
    pre_stoch: Array
    pre_hidden: Array
    gates: Array
    pre_post: Array
    squares: Array  # [t, n, tiles]: of pre_hidden, summed over each tile of columns


def split_product(
    plan: KernelPlan, left: Any, right: Ref, out: Ref, job: Array, rows: Any, depth: int, keep: Array | None = None
) -> None:
    """One tile and one part of `left @ right`, where `left` gives a range of its columns."""
    part, tile = divided(job, plan.hidden // plan.narrow)
    columns, first = pl.ds(tile * plan.narrow, plan.narrow), part * depth
    cut = loop_cut(depth)
    x = cut.load(lambda c: left(shifted(c, first)))
    weights = cut.load(lambda c: right[shifted(c, first), columns])
    total = product(x, weights, (plan.row_tile, plan.narrow))
    out[part, rows, columns] = total if keep is None else kept(total, keep)


def project_state(plan: KernelPlan, step: Array, keep: Array, history: History, w: Any) -> tuple[Array, Array, Array]:
    tiles = plan.hidden // plan.narrow
    parts, latent_parts = plan.deter // plan.depth, plan.stoch // plan.latent_depth
    first, second = tiles * parts, tiles * latent_parts

    def rssm_project_state(
        step: Ref, keep: Ref, deter: Ref, stoch: Ref, w_deter: Ref, w_stoch: Ref, w_block: Ref, *outputs: Ref
    ) -> None:
        t, job, rows = step[0], pl.program_id(0), row_range(plan)
        by_deter, by_stoch, by_block = outputs

        narrow, wide = down(plan, keep, t, rows, plan.narrow), down(plan, keep, t, rows, plan.wide)

        def load(state: Ref, columns: Any) -> Array:
            return jnp.asarray(state[t, rows, columns])

        @pl.when(job < first)
        def _() -> None:
            split_product(plan, partial(load, deter), w_deter, by_deter, job, rows, plan.depth, narrow)

        @pl.when((job >= first) & (job < first + second))
        def _() -> None:
            split_product(plan, partial(load, stoch), w_stoch, by_stoch, job - first, rows, plan.latent_depth, narrow)

        @pl.when(job >= first + second)
        def _() -> None:
            block, tile = divided(job - first - second, plan.block_tiles)
            within = pl.ds(tile * plan.wide, plan.wide)
            cut = loop_cut(plan.block)
            x = cut.load(lambda c: load(deter, shifted(c, block * plan.block)))
            weights = cut.load(lambda c: w_block[block, c, within])
            columns = shifted(within, block * plan.block)
            by_block[rows, columns] = kept(product(x, weights, (plan.row_tile, plan.wide)), wide)

    outputs = (
        struct(parts, plan.rows, plan.hidden),
        struct(latent_parts, plan.rows, plan.hidden),
        struct(plan.rows, plan.deter),
    )
    call = launch(plan, rssm_project_state, first + second + plan.wide_tiles, outputs, light=True)
    result: tuple[Array, Array, Array] = call(step, keep, history.deter, history.stoch, w.deter, w.stoch, w.block)
    return result


def mix_features(
    plan: KernelPlan, step: Array, projected: tuple[Array, Array, Array], action: Array, history: History, w: Any
) -> History:
    shape = (plan.row_tile, plan.wide)

    def rssm_mix_features(
        step: Ref,
        by_deter: Ref,
        by_stoch: Ref,
        by_block: Ref,
        action: Ref,
        deter_bias: Ref,
        deter_scale: Ref,
        stoch_bias: Ref,
        stoch_scale: Ref,
        shared: Ref,
        *others: Ref,
    ) -> None:
        pre_deter, pre_stoch, pre_hidden, squares = others[4:]
        job, rows, t = pl.program_id(0), row_range(plan), step[0]
        columns = pl.ds(job * plan.wide, plan.wide)

        cut = feature_cut(plan, 2 * plan.wide)

        def values(parts: Ref, bias: Ref) -> Chunks:
            return cut.load(lambda c: sum_parts(parts, rows, c) + across(plan, bias, c))

        deter, stoch = values(by_deter, deter_bias), values(by_stoch, stoch_bias)
        of_deter, of_stoch = (cut.load(partial(across, plan, ref)) for ref in (deter_scale, stoch_scale))
        weights = [cut.load(partial(_load_rows, shared, offset, columns)) for offset in (0, plan.hidden)]
        total = product(norm_silu_chunks(plan, deter, of_deter), weights[0], shape)
        total = total + product(norm_silu_chunks(plan, stoch, of_stoch), weights[1], shape)
        total = total + (by_block[rows, columns] + action[t, rows, columns].astype(jnp.float32))
        total = rounded(plan, total)
        pre_hidden[t, rows, columns] = total.astype(plan.dtype)
        squares[t, rows, job] = jnp.sum(jnp.square(total), -1)
        share_out(deter, job, plan.wide_tiles, partial(store_at, pre_deter, t, rows))
        share_out(stoch, job, plan.wide_tiles, partial(store_at, pre_stoch, t, rows))

    written = (history.pre_deter, history.pre_stoch, history.pre_hidden, history.squares)
    inputs = (step, *projected, action, w.deter_bias, w.deter_scale, w.stoch_bias, w.stoch_scale, w.shared)
    results = launch_in_place(plan, rssm_mix_features, plan.wide_tiles, inputs, written)
    pre_deter, pre_stoch, pre_hidden, squares = results
    return history._replace(pre_deter=pre_deter, pre_stoch=pre_stoch, pre_hidden=pre_hidden, squares=squares)


def _load_rows(ref: Ref, offset: int, columns: Any, rows: Any) -> Array:
    return jnp.asarray(ref[shifted(rows, offset), columns])


def store_at(ref: Ref, t: Array, rows: Any, columns: Any, value: Array) -> None:
    ref[t, rows, columns] = value.astype(ref.dtype)


def update_deter(plan: KernelPlan, step: Array, keep: Array, history: History, w: Any) -> History:
    size = plan.block

    def rssm_update_deter(
        step: Ref, keep: Ref, pre_hidden: Ref, squares: Ref, scale: Ref, w_gates: Ref, bias: Ref, *others: Ref
    ) -> None:
        old, _, deter, gates = others
        rows, t = row_range(plan), step[0]
        block, tile = divided(pl.program_id(0), plan.block_tiles)
        within = pl.ds(tile * plan.wide, plan.wide)
        columns = shifted(within, block * size)

        cut = product_cut(size, 3 * plan.wide)
        spots = [shifted(within, (3 * block + gate) * size) for gate in range(3)]
        values = cut.load(lambda c: pre_hidden[t, rows, shifted(c, block * size)].astype(jnp.float32))
        squared = squares[t, rows, pl.ds(0, plan.sums)]
        scales = cut.load(lambda c: scale[shifted(c, block * size)][None])

        def weights(gate: int) -> Chunks:
            return cut.load(lambda c: w_gates[block, c, shifted(within, gate * size)])

        tiles = [weights(gate) for gate in range(3)]
        inverse = hidden_inverse(plan, squared)
        x = cut.each(lambda i: silu(values.at(i) * inverse * scales.at(i)).astype(plan.dtype))
        sums = products(x, tiles, (plan.row_tile, plan.wide))
        result = [total + across(plan, bias, c) for total, c in zip(sums, spots, strict=True)]
        before = kept(old[t, rows, columns].astype(jnp.float32), down(plan, keep, t, rows, plan.wide))
        candidate = jnp.tanh(sigmoid(result[0]) * result[1])
        update = sigmoid(result[2] - UPDATE_BIAS)
        deter[t + 1, rows, columns] = (update * candidate + (1 - update) * before).astype(plan.dtype)
        for c, value in zip(spots, result, strict=True):
            gates[t, rows, c] = value.astype(plan.dtype)

    inputs = (step, keep, history.pre_hidden, history.squares, w.hidden_scale, w.gates, w.gates_bias)
    written = (history.deter, history.gates)
    # Programs read and write distinct parts of `deter`: this step's and the next one's.
    deter, gates = launch_in_place(plan, rssm_update_deter, plan.wide_tiles, inputs, written)
    return history._replace(gates=gates, deter=deter)


def project_deter(plan: KernelPlan, step: Array, history: History, w: Any) -> Array:
    parts = plan.deter // plan.depth

    def rssm_project_deter(step: Ref, deter: Ref, post: Ref, out: Ref) -> None:
        t, rows = step[0], row_range(plan)
        split_product(plan, lambda c: deter[t + 1, rows, c], post, out, pl.program_id(0), rows, plan.depth)

    outputs = [struct(parts, plan.rows, plan.hidden)]
    call = launch(plan, rssm_project_deter, parts * (plan.hidden // plan.narrow), outputs, light=True)
    (result,) = call(step, history.deter, w.post)
    return jnp.asarray(result)


def sample_latents(
    plan: KernelPlan, step: Array, by_post: Array, token: Array, noise: Array, history: History, w: Any
) -> tuple[Array, History]:
    """A program per latent. Returns the next step's index as well."""
    width = plan.width

    def rssm_sample_latents(
        step: Ref, by_post: Ref, token: Ref, noise: Ref, scale: Ref, w_logits: Ref, bias: Ref, *others: Ref
    ) -> None:
        pre_post, logits, stoch, following = others[3:]
        job, rows, t = pl.program_id(0), row_range(plan), step[0]
        columns = pl.ds(job * width, width)
        cut = feature_cut(plan, width)
        scales, shift = cut.load(lambda c: across(plan, scale, c)), across(plan, bias, columns)
        values = cut.load(lambda c: sum_parts(by_post, rows, c) + token[t, rows, c].astype(jnp.float32))
        luck = noise[t, rows, columns]
        weights = cut.load(lambda c: w_logits[c, columns])
        value = product(norm_silu_chunks(plan, values, scales), weights, (plan.row_tile, width))
        value = rounded(plan, value + shift)
        stoch[t + 1, rows, columns] = _choose(plan, value, luck).astype(plan.dtype)
        logits[t, rows, columns] = value.astype(plan.dtype)
        share_out(values, job, plan.latents, partial(store_at, pre_post, t, rows))
        following[0] = t + 1

    inputs = (step, by_post, token, noise, w.post_scale, w.logits, w.logits_bias)
    written = (history.pre_post, history.logits, history.stoch)
    fresh = [struct(1, dtype=jnp.int32)]
    results = launch_in_place(plan, rssm_sample_latents, plan.latents, inputs, written, fresh)
    pre_post, logits, stoch, following = results
    return following, history._replace(pre_post=pre_post, logits=logits, stoch=stoch)


def _choose(plan: KernelPlan, logits: Array, noise: Array) -> Array:
    """One-hot, the first of the largest; padded classes have no probability."""
    index = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    real = index < plan.classes
    probs = class_probs(plan, logits)
    mixed = (1 - plan.unimix) * probs + plan.unimix / plan.classes
    score = jnp.where(real, jnp.log(mixed) + noise, -jnp.inf)
    best = jnp.max(score, -1)[:, None]
    first = jnp.min(jnp.where(score == best, index, plan.width), -1)[:, None]
    return (index == first).astype(jnp.float32)


def class_probs(plan: KernelPlan, logits: Array) -> Array:
    index = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    logits = jnp.where(index < plan.classes, logits, -jnp.inf)
    powers = jnp.exp(logits - jnp.max(logits, -1)[:, None])
    return powers / jnp.sum(powers, -1)[:, None]


def hidden_inverse(plan: KernelPlan, squares: Array) -> Array:
    """From a step's sums of squares over tiles."""
    return jax.lax.rsqrt(jnp.sum(squares, 1) / plan.deter + NORM_EPS)[:, None]


def rounded(plan: KernelPlan, x: Array) -> Array:
    """To the compute dtype and back, as if it had been stored in between."""
    return x.astype(plan.dtype).astype(jnp.float32)
