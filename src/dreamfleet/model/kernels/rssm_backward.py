"""The gradient of one step of the recurrent model in five kernels.

    back_logits    gradient at the logits -> at the posterior's activation (split sums)
    back_update    posterior's norm, its product, GRU -> gradient at the gates and the direct one at the last `deter`
    back_gates     gates -> gradient at the scaled hidden norm
    back_features  hidden norm -> gradients at the features (split sums) and, through the blocks, at the last `deter`
    back_state     feature norms -> gradients at the last state, and through the sample at the last step's logits

They yield the gradients at every layer; those of the weights are products over all steps after the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from dreamfleet.model.kernels.rssm_forward import History, class_probs, hidden_inverse, store_at
from dreamfleet.model.kernels.tiles import (
    Cut,
    Index,
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
    norm_silu_gradient_chunks,
    product,
    product_cut,
    row_range,
    share_out,
    shifted,
    sigmoid,
    silu_slope,
    struct,
    sum_parts,
)
from dreamfleet.model.rssm import UPDATE_BIAS


class Gradients(NamedTuple):
    """What the loop writes, over time: at the scaled norms, the gates and the logits."""

    deter: Array
    stoch: Array
    hidden: Array
    gates: Array
    post: Array
    logits: Array  # [t + 1, n, sc]: one entry later than the step
    sums: Array  # [n, tiles]: of the current step alone, what the hidden norm's gradient needs of each tile of columns


class Outer(NamedTuple):
    """Gradients from outside at what the loop returned, over time."""

    deter: Array
    stoch: Array
    logits: Array


class Cotangent(NamedTuple):
    """At the last state, in float32."""

    deter: Array
    stoch: Array


def back_logits(plan: KernelPlan, step: Array, grads: Gradients, w: Any) -> Array:
    tiles, parts = plan.hidden // plan.narrow, plan.stoch // plan.latent_depth

    def rssm_back_logits(step: Ref, at_logits: Ref, w_logits: Ref, out: Ref) -> None:
        t, rows = step[0], row_range(plan)
        part, tile = divided(pl.program_id(0), tiles)
        columns, first = pl.ds(tile * plan.narrow, plan.narrow), part * plan.latent_depth
        cut = loop_cut(plan.latent_depth)
        x = cut.load(lambda c: at_logits[t + 1, rows, shifted(c, first)])
        weights = cut.load(lambda c: w_logits[columns, shifted(c, first)])
        out[part, rows, columns] = product(x, weights, (plan.row_tile, plan.narrow), transposed=True)

    call = launch(plan, rssm_back_logits, tiles * parts, [struct(parts, plan.rows, plan.hidden)], light=True)
    (result,) = call(step, grads.logits, w.logits)
    return jnp.asarray(result)


def back_update(
    plan: KernelPlan,
    step: Array,
    keep: Array,
    by_logits: Array,
    at_state: Cotangent,
    saved: tuple[History, Gradients],
    w: Any,
) -> tuple[Array, Gradients]:
    """Returns the direct part of the gradient at the last `deter`."""
    history, grads = saved
    size = plan.block

    def rssm_back_update(
        step: Ref,
        keep: Ref,
        by_logits: Ref,
        at_deter: Ref,
        pre_post: Ref,
        deter: Ref,
        gates: Ref,
        scale: Ref,
        w_post: Ref,
        *others: Ref,
    ) -> None:
        at_post, at_gates, direct = others[2:]
        job, rows, t = pl.program_id(0), row_range(plan), step[0]
        block, tile = divided(job, plan.block_tiles)
        within = pl.ds(tile * plan.wide, plan.wide)
        columns = shifted(within, block * size)
        spots = [shifted(within, (3 * block + gate) * size) for gate in range(3)]
        cut = feature_cut(plan, plan.wide)
        activation = cut.load(lambda c: sum_parts(by_logits, rows, c))
        scales = cut.load(lambda c: across(plan, scale, c))
        parts = cut.load(lambda c: pre_post[t, rows, c])
        weights = cut.load(lambda c: w_post[columns, c])
        normed, inputs = norm_silu_gradient_chunks(plan, parts, activation, scales)
        grad = product(inputs, weights, (plan.row_tile, plan.wide), transposed=True) + at_deter[rows, columns]
        kinds = [gates[t, rows, c].astype(jnp.float32) for c in spots]
        old = kept(deter[t, rows, columns].astype(jnp.float32), down(plan, keep, t, rows, plan.wide))
        result, old_grad = gru_gradient(kinds, old, grad)
        for c, value in zip(spots, result, strict=True):
            at_gates[t, rows, c] = value.astype(plan.dtype)
        direct[rows, columns] = old_grad
        share_out(normed, job, plan.wide_tiles, partial(store_at, at_post, t, rows))

    read = (history.pre_post, history.deter, history.gates)
    inputs = (step, keep, by_logits, at_state.deter, *read, w.post_scale, w.post)
    fresh = [struct(plan.rows, plan.deter)]
    results = launch_in_place(plan, rssm_back_update, plan.wide_tiles, inputs, (grads.post, grads.gates), fresh)
    post, gates, direct = results
    return direct, grads._replace(post=post, gates=gates)


def gru_gradient(gates: list[Array], old: Array, grad: Array) -> tuple[tuple[Array, Array, Array], Array]:
    """At the three gates and at the last `deter`."""
    reset, raw, update = sigmoid(gates[0]), gates[1], sigmoid(gates[2] - UPDATE_BIAS)
    candidate = jnp.tanh(reset * raw)
    inner = grad * update * (1 - candidate * candidate)
    at_update = grad * (candidate - old) * update * (1 - update)
    return (inner * raw * reset * (1 - reset), inner * reset, at_update), grad * (1 - update)


def back_gates(plan: KernelPlan, step: Array, saved: tuple[History, Gradients], w: Any) -> Gradients:
    history, grads = saved
    size = plan.block

    def rssm_back_gates(
        step: Ref, at_gates: Ref, pre_hidden: Ref, squares: Ref, scale: Ref, w_gates: Ref, *others: Ref
    ) -> None:
        at_hidden, sums = others[2:]
        job, rows, t = pl.program_id(0), row_range(plan), step[0]
        block, tile = divided(job, plan.block_tiles)
        within = pl.ds(tile * plan.wide, plan.wide)
        columns = shifted(within, block * size)
        cut = loop_cut(3 * size)
        x = cut.load(lambda c: at_gates[t, rows, shifted(c, 3 * block * size)])
        weights = cut.load(lambda c: w_gates[block, within, c])
        squared = squares[t, rows, pl.ds(0, plan.sums)]
        grad = product(x, weights, (plan.row_tile, plan.wide), transposed=True)
        unit, scales = pre_hidden[t, rows, columns].astype(jnp.float32), across(plan, scale, columns)
        unit = unit * hidden_inverse(plan, squared)
        normed = grad * silu_slope(unit * scales)
        at_hidden[t, rows, columns] = normed.astype(plan.dtype)
        sums[rows, job] = jnp.sum(normed * scales * unit, -1)

    inputs = (step, grads.gates, history.pre_hidden, history.squares, w.hidden_scale, w.gates)
    written = (grads.hidden, grads.sums)
    hidden, sums = launch_in_place(plan, rssm_back_gates, plan.wide_tiles, inputs, written, light=True)
    return grads._replace(hidden=hidden, sums=sums)


def back_features(plan: KernelPlan, step: Array, saved: tuple[History, Gradients], w: Any) -> tuple[Array, Array]:
    history, grads = saved
    tiles, parts = 2 * plan.hidden // plan.narrow, plan.deter // plan.depth
    first = tiles * parts

    def rssm_back_features(
        step: Ref,
        sums: Ref,
        at_hidden: Ref,
        pre_hidden: Ref,
        squares: Ref,
        scale: Ref,
        shared: Ref,
        w_block: Ref,
        by_shared: Ref,
        by_block: Ref,
    ) -> None:
        job, rows, t = pl.program_id(0), row_range(plan), step[0]

        def through_norm(cut: Cut, offset: Array, load: Callable[[Any], Array], width: int) -> Array:
            """The product of the gradient at the hidden layer, from `offset` on, with what `load` gives."""
            values = cut.load(lambda c: pre_hidden[t, rows, shifted(c, offset)].astype(jnp.float32))
            normed = cut.load(lambda c: at_hidden[t, rows, shifted(c, offset)].astype(jnp.float32))
            summed, squared = sums[rows, pl.ds(0, plan.sums)], squares[t, rows, pl.ds(0, plan.sums)]
            scales = cut.load(lambda c: scale[shifted(c, offset)][None])
            weights = cut.load(load)
            inverse = hidden_inverse(plan, squared)
            pull = jnp.square(inverse) * jnp.sum(summed, 1)[:, None] / plan.deter

            def at_input(i: Index) -> Array:
                return (inverse * (normed.at(i) * scales.at(i)) - values.at(i) * pull).astype(plan.dtype)

            return product(cut.each(at_input), weights, (plan.row_tile, width), transposed=True)

        @pl.when(job < first)
        def _() -> None:
            part, tile = divided(job, tiles)
            columns, offset = pl.ds(tile * plan.narrow, plan.narrow), part * plan.depth
            cut = product_cut(plan.depth, plan.narrow)
            out = through_norm(cut, offset, lambda c: shared[columns, shifted(c, offset)], plan.narrow)
            by_shared[part, rows, columns] = out

        @pl.when(job >= first)
        def _() -> None:
            block, tile = divided(job - first, plan.block_tiles)
            within, offset = pl.ds(tile * plan.wide, plan.wide), block * plan.block
            cut = product_cut(plan.block, plan.wide)
            out = through_norm(cut, offset, lambda c: w_block[block, within, c], plan.wide)
            by_block[rows, shifted(within, offset)] = out

    outputs = [struct(parts, plan.rows, 2 * plan.hidden), struct(plan.rows, plan.deter)]
    call = launch(plan, rssm_back_features, first + plan.wide_tiles, outputs)
    inputs = (step, grads.sums, grads.hidden, history.pre_hidden, history.squares, w.hidden_scale, w.shared, w.block)
    by_shared, by_block = call(*inputs)
    return by_shared, by_block


def back_state(
    plan: KernelPlan,
    step: Array,
    keep: Array,
    given: tuple[Array, Array, Array],
    outer: Outer,
    saved: tuple[History, Gradients],
    w: Any,
) -> tuple[Array, Cotangent, Gradients]:
    """`given`: by the features, by the blocks, and directly. Returns the index of the step before as well."""
    history, grads = saved
    hidden, width = plan.hidden, plan.width
    first = plan.wide_tiles

    def rssm_back_state(
        step: Ref,
        keep: Ref,
        by_shared: Ref,
        by_block: Ref,
        direct: Ref,
        outer_deter: Ref,
        outer_stoch: Ref,
        outer_logits: Ref,
        logits: Ref,
        pre_deter: Ref,
        pre_stoch: Ref,
        deter_scale: Ref,
        stoch_scale: Ref,
        w_deter: Ref,
        w_stoch: Ref,
        *others: Ref,
    ) -> None:
        at_deter, at_stoch, at_logits, deter_out, stoch_out, before = others[3:]
        job, rows, t = pl.program_id(0), row_range(plan), step[0]
        last = jnp.maximum(t - 1, 0)  # the initial state takes no gradient from outside
        inner = (t > 0).astype(jnp.float32)

        def through_norm(cut: Cut, offset: int, pre: Ref, scale: Ref, load: Callable[[Any], Array], width: int) -> Any:
            """The gradient at the scaled norm, and the product of that at its input with what `load` gives."""
            activation = cut.load(lambda c: sum_parts(by_shared, rows, shifted(c, offset)))
            scales = cut.load(lambda c: across(plan, scale, c))
            parts = cut.load(lambda c: pre[t, rows, c])
            weights = cut.load(load)
            normed, inputs = norm_silu_gradient_chunks(plan, parts, activation, scales)
            return normed, product(inputs, weights, (plan.row_tile, width), transposed=True)

        @pl.when(job < first)
        def _() -> None:
            columns, cut = pl.ds(job * plan.wide, plan.wide), feature_cut(plan, plan.wide)
            given = (pre_deter, deter_scale, lambda c: w_deter[columns, c], plan.wide)
            normed, grad = through_norm(cut, 0, *given)
            known = by_block[rows, columns] + direct[rows, columns]
            outside = outer_deter[last, rows, columns].astype(jnp.float32) * inner
            deter_out[rows, columns] = kept(known + grad, down(plan, keep, t, rows, plan.wide)) + outside
            share_out(normed, job, first, partial(store_at, at_deter, t, rows))

        @pl.when(job >= first)
        def _() -> None:
            latent = job - first
            columns, cut = pl.ds(latent * width, width), feature_cut(plan, width)
            given = (pre_stoch, stoch_scale, lambda c: w_stoch[columns, c], width)
            normed, grad = through_norm(cut, hidden, *given)
            values = logits[last, rows, columns].astype(jnp.float32)
            outside = outer_stoch[last, rows, columns].astype(jnp.float32) * inner
            to_logits = outer_logits[last, rows, columns].astype(jnp.float32)
            grad = kept(grad, down(plan, keep, t, rows, width)) + outside
            stoch_out[rows, columns] = grad
            at_logits[t, rows, columns] = (to_logits + sample_gradient(plan, values, grad)).astype(plan.dtype)
            share_out(normed, latent, plan.latents, partial(store_at, at_stoch, t, rows))
            before[0] = t - 1

    read = (history.logits, history.pre_deter, history.pre_stoch)
    inputs = (step, keep, *given, *outer, *read, w.deter_scale, w.stoch_scale, w.deter, w.stoch)
    written = (grads.deter, grads.stoch, grads.logits)
    fresh = [struct(plan.rows, plan.deter), struct(plan.rows, plan.stoch), struct(1, dtype=jnp.int32)]
    results = launch_in_place(plan, rssm_back_state, first + plan.latents, inputs, written, fresh)
    deter, stoch, at_logits, deter_out, stoch_out, before = results
    return before, Cotangent(deter_out, stoch_out), grads._replace(deter=deter, stoch=stoch, logits=at_logits)


def sample_gradient(plan: KernelPlan, logits: Array, grad: Array) -> Array:
    """Straight through: the gradient of the probabilities."""
    probs = class_probs(plan, logits)
    wide = grad * (1 - plan.unimix)
    return probs * (wide - jnp.sum(wide * probs, -1)[:, None])
