"""The recurrent model's loop over a sequence with a handful of GPU kernels per step, forward and backward.

At small batches a step is a chain of tiny products, and most of its time is the start of kernels. Here every product is
one kernel with its norm before and its activation after. `rssm_scan` decides when to use them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dreamfleet.model.kernels import rssm_backward as backward
from dreamfleet.model.kernels import rssm_forward as forward
from dreamfleet.model.kernels.rssm_backward import Cotangent, Gradients, Outer
from dreamfleet.model.kernels.rssm_forward import History
from dreamfleet.model.kernels.tiles import MIN_TILE, KernelPlan, ScanTiling

UNROLL = 8  # steps per turn of XLA's loop
MAX_DETER = 3072  # on an H200 faster than the scan at 2048 and 3072, slower at 8192; between them not measured


class Given(NamedTuple):
    """Of every step, time first, rows and classes padded."""

    action: Array
    token: Array
    keep: Array  # [t * n]
    noise: Array


class Result(NamedTuple):
    """As the plan's loop leaves it, padding cut off."""

    deter: Array
    stoch: Array
    logits: Array
    pre_deter: Array
    pre_stoch: Array
    pre_hidden: Array
    pre_post: Array


def make_plan(
    weights: Any, inputs: Any, classes: int, unimix: float, tiling: ScanTiling | None = None, interpret: bool = False
) -> KernelPlan:
    steps, rows, deter = inputs.action.shape
    hidden = weights.deter.shape[1]
    return KernelPlan(
        steps=steps,
        rows=-(-rows // MIN_TILE) * MIN_TILE,
        deter=deter,
        hidden=hidden,
        blocks=weights.block.shape[0],
        latents=weights.stoch.shape[0] // classes,
        classes=classes,
        width=max(MIN_TILE, 1 << (classes - 1).bit_length()),
        unimix=unimix,
        dtype=inputs.action.dtype,
        tiling=tiling or ScanTiling(),
        interpret=interpret,
    )


def use_kernels(plan: KernelPlan) -> bool:
    """Larger models stream their weights from memory, which XLA's own products do faster."""
    return jax.default_backend() == "gpu" and plan.dtype == jnp.bfloat16 and plan.deter <= MAX_DETER and fits(plan)


def fits(plan: KernelPlan) -> bool:
    """Whether every tile is large enough for the matrix units."""
    return plan.smallest_tile() >= MIN_TILE


def pad_weights(plan: KernelPlan, weights: Any) -> Any:
    """In the compute dtype, apart from the norms' scales, with padded classes."""
    cast = jax.tree.map(lambda x: x.astype(plan.dtype), weights)
    scales = {name: getattr(weights, name) for name in weights._fields if name.endswith("_scale")}
    return cast._replace(
        stoch=_pad_classes(plan, cast.stoch.T).T,
        logits=_pad_classes(plan, cast.logits),
        logits_bias=_pad_classes(plan, cast.logits_bias),
        **scales,
    )


def _pad_classes(plan: KernelPlan, x: Array) -> Array:
    if plan.width == plan.classes:
        return x
    split = x.reshape(*x.shape[:-1], plan.latents, plan.classes)
    split = jnp.pad(split, [(0, 0)] * (split.ndim - 1) + [(0, plan.width - plan.classes)])
    return split.reshape(*x.shape[:-1], plan.stoch)


def _cut_classes(plan: KernelPlan, x: Array) -> Array:
    if plan.width == plan.classes:
        return x
    split = x.reshape(*x.shape[:-1], plan.latents, plan.width)[..., : plan.classes]
    return split.reshape(*x.shape[:-1], plan.latents * plan.classes)


def _pad_rows(plan: KernelPlan, x: Array, axis: int) -> Array:
    missing = plan.rows - x.shape[axis]
    return x if missing == 0 else jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)])


def run_forward(plan: KernelPlan, weights: Any, carry: tuple[Array, Array], inputs: Any) -> tuple[History, Given, Any]:
    w = pad_weights(plan, weights)
    given = Given(
        _pad_rows(plan, inputs.action, 1),
        _pad_rows(plan, inputs.token, 1),
        _pad_rows(plan, inputs.keep[..., 0], 1).reshape(-1),
        _pad_rows(plan, _pad_classes(plan, inputs.noise.reshape(*inputs.noise.shape[:2], -1)), 1),
    )
    history = _empty_history(plan)
    history = history._replace(
        deter=history.deter.at[0].set(_pad_rows(plan, carry[0], 0)),
        stoch=history.stoch.at[0].set(_pad_rows(plan, _pad_classes(plan, carry[1]), 0)),
    )

    def step(state: tuple[Array, History], _: None) -> tuple[tuple[Array, History], None]:
        t, history = state
        projected = forward.project_state(plan, t, given.keep, history, w)
        history = forward.mix_features(plan, t, projected, given.action, history, w)
        history = forward.update_deter(plan, t, given.keep, history, w)
        by_post = forward.project_deter(plan, t, history, w)
        return forward.sample_latents(plan, t, by_post, given.token, given.noise, history, w), None

    start = (jnp.zeros(1, jnp.int32), history)
    (_, history), _ = jax.lax.scan(step, start, None, length=plan.steps, unroll=min(UNROLL, plan.steps))
    return history, given, w


def _empty_history(plan: KernelPlan) -> History:
    t, n = plan.steps, plan.rows

    def empty(size: int, steps: int = t, dtype: Any = plan.dtype) -> Array:
        return jnp.zeros((steps, n, size), dtype)

    return History(
        deter=empty(plan.deter, t + 1),
        stoch=empty(plan.stoch, t + 1),
        logits=empty(plan.stoch),
        pre_deter=empty(plan.hidden, dtype=jnp.float32),
        pre_stoch=empty(plan.hidden, dtype=jnp.float32),
        pre_hidden=empty(plan.deter),
        gates=empty(3 * plan.deter),
        pre_post=empty(plan.hidden, dtype=jnp.float32),
        squares=jnp.zeros((t, n, plan.sums), jnp.float32),
    )


def cut_history(plan: KernelPlan, history: History, rows: int) -> Result:
    h = History(*(x[:, :rows].astype(plan.dtype) for x in history))
    stoch, logits = _cut_classes(plan, h.stoch[1:]), _cut_classes(plan, h.logits)
    return Result(h.deter[1:], stoch, logits, h.pre_deter, h.pre_stoch, h.pre_hidden, h.pre_post)


def run_backward(
    plan: KernelPlan, w: Any, keep: Array, history: History, grads: tuple[Array, Array, Array]
) -> tuple[Gradients, tuple[Array, Array]]:
    """The gradients at every layer over time, and at the initial state."""
    rows = grads[0].shape[1]
    outer = Outer(
        _pad_rows(plan, grads[0], 1),
        _pad_rows(plan, _pad_classes(plan, grads[1]), 1),
        _pad_rows(plan, _pad_classes(plan, grads[2]), 1),
    )
    taps = _empty_gradients(plan)
    taps = taps._replace(logits=taps.logits.at[plan.steps].set(_last_logits_gradient(plan, history, outer)))
    at_state = Cotangent(*(x[-1].astype(jnp.float32) for x in (outer.deter, outer.stoch)))

    def step(state: tuple[Array, Cotangent, Gradients], _: None) -> tuple[tuple[Array, Cotangent, Gradients], None]:
        t, at_state, taps = state
        by_logits = backward.back_logits(plan, t, taps, w)
        direct, taps = backward.back_update(plan, t, keep, by_logits, at_state, (history, taps), w)
        taps = backward.back_gates(plan, t, (history, taps), w)
        by_shared, by_block = backward.back_features(plan, t, (history, taps), w)
        given = (by_shared, by_block, direct)
        return backward.back_state(plan, t, keep, given, outer, (history, taps), w), None

    start = (jnp.full(1, plan.steps - 1, jnp.int32), at_state, taps)
    (_, at_state, taps), _ = jax.lax.scan(step, start, None, length=plan.steps, unroll=min(UNROLL, plan.steps))
    taps = taps._replace(logits=_cut_classes(plan, taps.logits[1:]))
    deter, stoch = at_state.deter.astype(plan.dtype), _cut_classes(plan, at_state.stoch).astype(plan.dtype)
    return Gradients(*(x[:, :rows].astype(plan.dtype) for x in taps)), (deter[:rows], stoch[:rows])


def _last_logits_gradient(plan: KernelPlan, history: History, outer: Outer) -> Array:
    def split(x: Array) -> Array:
        return x[-1].reshape(-1, plan.width).astype(jnp.float32)

    grad = split(outer.logits) + backward.sample_gradient(plan, split(history.logits), split(outer.stoch))
    return grad.reshape(plan.rows, plan.stoch).astype(plan.dtype)


def _empty_gradients(plan: KernelPlan) -> Gradients:
    sizes = (plan.hidden, plan.hidden, plan.deter, 3 * plan.deter, plan.hidden)
    deter, stoch, hidden, gates, post = (jnp.zeros((plan.steps, plan.rows, size), plan.dtype) for size in sizes)
    logits = jnp.zeros((plan.steps + 1, plan.rows, plan.stoch), plan.dtype)
    sums = jnp.zeros((plan.rows, plan.sums), jnp.float32)
    return Gradients(deter, stoch, hidden, gates, post, logits, sums)
