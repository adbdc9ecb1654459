"""The recurrent model over whole sequences, with everything that is not sequential taken out of the loop.

What depends on tokens and actions alone is computed for all steps at once before the loop, and so is the prior after
it. The gradient of a weight would be a small product at every step of the backward loop; here that loop only yields the
gradient at each layer's output, and every weight's gradient is one product over batch and time after it.

The latter works by taps: zeros that are added to the layers' outputs. Their gradients are the gradients at those
outputs, stacked over time, while the weights themselves are constants of the loop.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from dreamfleet.core.hyperparameters import RSSMOptions
from dreamfleet.model.distributions import choose, mix_uniform
from dreamfleet.model.kernels.rssm import cut_history, make_plan, run_backward, run_forward, use_kernels
from dreamfleet.model.kernels.rssm_forward import History
from dreamfleet.model.kernels.tiles import KernelPlan
from dreamfleet.model.layers import (
    Dense,
    add_bias,
    by_blocks,
    column_sum,
    matmul,
    norm_silu,
    norm_silu_gradient,
    unit_norm,
    unit_norm_gradient,
)
from dreamfleet.model.rssm import RSSM, State, bounded, flat, gru, join_blocks


class Weights(NamedTuple):
    """Of the loop: what is multiplied at every step."""

    deter: Float[Array, "d h"]
    deter_bias: Float[Array, " h"]
    deter_scale: Float[Array, " h"]
    stoch: Float[Array, "sc h"]
    stoch_bias: Float[Array, " h"]
    stoch_scale: Float[Array, " h"]
    block: Float[Array, "g e e"]  # each block's slice of deter, e = d / g
    shared: Float[Array, "h2 d"]  # what all blocks see: the features of deter and stoch
    hidden_scale: Float[Array, " d"]
    gates: Float[Array, "g e e3"]
    gates_bias: Float[Array, " d3"]
    post: Float[Array, "d h"]
    post_scale: Float[Array, " h"]
    logits: Float[Array, "h sc"]
    logits_bias: Float[Array, " sc"]


class Inputs(NamedTuple):
    """Of every step, time first."""

    action: Float[Array, "t n d"]  # the action's share of the hidden layer, with its bias
    token: Float[Array, "t n h"]  # the token's share of the posterior's layer, with its bias
    keep: Float[Array, "t n 1"]  # 0 where an episode begins
    noise: Float[Array, "t n s c"]


class Taps(NamedTuple):
    """One per layer: added after a norm's scale, or where there is none to the layer's output."""

    deter: Float[Array, "t n h"]
    stoch: Float[Array, "t n h"]
    hidden: Float[Array, "t n d"]
    gates: Float[Array, "t n d3"]
    post: Float[Array, "t n h"]
    logits: Float[Array, "t n sc"]


class Residuals(NamedTuple):
    """What the loop leaves behind for the weights' gradients."""

    old_deter: Float[Array, "t n d"]
    old_stoch: Float[Array, "t n sc"]
    shared: Float[Array, "t n h2"]
    pre_deter: Float[Array, "t n h"]
    pre_stoch: Float[Array, "t n h"]
    pre_hidden: Float[Array, "t n d"]
    hidden: Float[Array, "t n d"]
    pre_post: Float[Array, "t n h"]
    post: Float[Array, "t n h"]


def is_standard(options: RSSMOptions) -> bool:
    """Whether `observe_sequence` covers the options; other depths take the plain steps."""
    return options.dynlayers == 1 and options.obslayers == 1 and not options.absolute


def observe_sequence(
    rssm: RSSM,
    state: State,
    tokens: Float[Array, "t n k"],
    actions: Float[Array, "t n a"],
    resets: Bool[Array, "t n"],
    noise: Float[Array, "t n s c"],
    unroll: int = 1,
    kernels: bool = False,
) -> tuple[State, Float[Array, "t n s c"]]:
    """Every step's state, and the log-probabilities of its `stoch`. `kernels`: on a GPU, where the sizes allow."""
    dtype = state.deter.dtype
    keep = (~resets[..., None]).astype(dtype)
    if not is_standard(rssm.options):
        return _observe_plain(rssm, state, tokens, actions, resets, noise)
    weights = split_weights(rssm)
    action = rssm.core.from_action(bounded(jnp.where(resets[..., None], 0, actions)))
    hidden, size = rssm.core.hidden[0], rssm.options.hidden
    share = join_blocks(hidden.kernel[:, -size:])
    inputs = Inputs(
        add_bias(matmul(action, share), hidden.bias),
        _token_share(rssm.post[0], rssm.options.deter, tokens),
        keep,
        noise,
    )
    carry = (state.deter, flat(state.stoch))
    plan = make_plan(weights, inputs, rssm.options.classes, rssm.options.unimix) if kernels else None
    if plan is not None and use_kernels(plan):
        deter, stoch, logits = kernel_loop(plan, weights, carry, inputs)
    else:
        static = (rssm.options.blocks, rssm.options.unimix, unroll)
        deter, stoch, logits = _loop(static, weights, carry, inputs)
    stoch = stoch.reshape(*stoch.shape[:-1], rssm.options.stoch, rssm.options.classes)
    return State(deter, stoch), rssm.log_probs(logits)


def split_weights(rssm: RSSM) -> Weights:
    core, size = rssm.core, rssm.options.hidden
    hidden = core.hidden[0].kernel
    return Weights(
        core.from_deter.linear.kernel,
        core.from_deter.linear.bias,
        core.from_deter.norm.scale,
        core.from_stoch.linear.kernel,
        core.from_stoch.linear.bias,
        core.from_stoch.norm.scale,
        hidden[:, : -3 * size],
        join_blocks(hidden[:, -3 * size : -size]),
        core.norms[0].scale,
        core.gates.kernel,
        core.gates.bias,
        rssm.post[0].linear.kernel[: rssm.options.deter],
        rssm.post[0].norm.scale,
        rssm.post_logits.kernel,
        rssm.post_logits.bias,
    )


def _token_share(layer: Dense, deter: int, tokens: Float[Array, "t n k"]) -> Float[Array, "t n h"]:
    return add_bias(matmul(tokens, layer.linear.kernel[deter:]), layer.linear.bias)


Carry = tuple[Float[Array, "n d"], Float[Array, "n sc"]]
Static = tuple[int, float, int]
Outputs = tuple[Float[Array, "t n d"], Float[Array, "t n sc"], Float[Array, "t n sc"]]  # deter, stoch, logits


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loop(static: Static, weights: Weights, carry: Carry, inputs: Inputs) -> Outputs:
    (deter, stoch, logits), _ = _scan(static, weights, carry, inputs, _no_taps(inputs, weights))
    return deter, stoch, logits


def _loop_forward(
    static: Static, weights: Weights, carry: Carry, inputs: Inputs
) -> tuple[tuple[Array, Array, Array], Any]:
    def run(carry: Carry, inputs: Inputs, taps: Taps) -> tuple[Outputs, Residuals]:
        return _scan(static, weights, carry, inputs, taps)

    outputs, backward, seen = jax.vjp(run, carry, inputs, _no_taps(inputs, weights), has_aux=True)
    return outputs, (backward, outputs[0], seen, weights)


def _loop_backward(static: Static, saved: Any, grads: Outputs) -> tuple[Weights, Carry, Inputs]:
    backward, deter, seen, weights = saved
    carry_grad, inputs_grad, taps_grad = backward(grads)
    return _weight_gradients(static[0], weights, seen, deter, taps_grad), carry_grad, inputs_grad


_loop.defvjp(_loop_forward, _loop_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def kernel_loop(plan: KernelPlan, weights: Weights, carry: Carry, inputs: Inputs) -> Outputs:
    """The same function as `_loop`, of GPU kernels."""
    return _kernel_loop_forward(plan, weights, carry, inputs)[0]


class _Saved(NamedTuple):
    history: History
    keep: Float[Array, " tn"]  # rows padded, as the classes of the weights
    padded: Weights
    weights: Weights
    carry: Carry
    inputs: Inputs


def _kernel_loop_forward(plan: KernelPlan, weights: Weights, carry: Carry, inputs: Inputs) -> tuple[Outputs, _Saved]:
    history, given, padded = run_forward(plan, weights, carry, inputs)
    result = cut_history(plan, history, inputs.action.shape[1])
    saved = _Saved(history, given.keep, padded, weights, carry, inputs)
    return (result.deter, result.stoch, result.logits), saved


def _kernel_loop_backward(plan: KernelPlan, saved: _Saved, grads: Outputs) -> tuple[Weights, Carry, Inputs]:
    history, keep, padded, weights, carry, inputs = saved
    result = cut_history(plan, history, inputs.action.shape[1])
    layers, carry_grad = run_backward(plan, padded, keep, history, grads)
    taps = Taps(*(getattr(layers, name) for name in Taps._fields))
    shared = [norm_silu(result.pre_deter, weights.deter_scale), norm_silu(result.pre_stoch, weights.stoch_scale)]
    seen = Residuals(
        jnp.where(inputs.keep > 0, _before(carry[0], result.deter), 0),
        jnp.where(inputs.keep > 0, _before(carry[1], result.stoch), 0),
        jnp.concatenate(shared, -1),
        result.pre_deter,
        result.pre_stoch,
        result.pre_hidden,
        norm_silu(result.pre_hidden, weights.hidden_scale),
        result.pre_post,
        norm_silu(result.pre_post, weights.post_scale),
    )
    at_action, _ = _through_norm(seen.pre_hidden, weights.hidden_scale, taps.hidden)
    at_token, _ = _through_norm(seen.pre_post, weights.post_scale, taps.post)
    inputs_grad = Inputs(at_action, at_token, jnp.zeros_like(inputs.keep), jnp.zeros_like(inputs.noise))
    return _weight_gradients(plan.blocks, weights, seen, result.deter, taps), carry_grad, inputs_grad


kernel_loop.defvjp(_kernel_loop_forward, _kernel_loop_backward)


def _before(first: Float[Array, "n a"], states: Float[Array, "t n a"]) -> Float[Array, "t n a"]:
    return jnp.concatenate([first[None], states[:-1]])


def _scan(static: Static, weights: Weights, carry: Carry, inputs: Inputs, taps: Taps) -> tuple[Outputs, Residuals]:
    blocks, unimix, unroll = static
    w = jax.tree.map(lambda x: x.astype(inputs.action.dtype), weights)
    scales = weights  # norms compute in float32

    def step(carry: Carry, given: tuple[Inputs, Taps]) -> tuple[Carry, tuple[Outputs, Residuals]]:
        x, tap = given
        deter, stoch = (jnp.where(x.keep > 0, old, 0) for old in carry)
        pre_deter = deter @ w.deter + w.deter_bias
        pre_stoch = stoch @ w.stoch + w.stoch_bias
        shared = jnp.concatenate(
            [
                _norm_silu(pre_deter, scales.deter_scale, tap.deter),
                _norm_silu(pre_stoch, scales.stoch_scale, tap.stoch),
            ],
            -1,
        )
        pre_hidden = by_blocks(deter, w.block) + shared @ w.shared + x.action
        hidden = _norm_silu(pre_hidden, scales.hidden_scale, tap.hidden)
        new = gru(by_blocks(hidden, w.gates) + tap.gates, weights.gates_bias, deter, blocks)
        pre_post = new @ w.post + x.token
        post = _norm_silu(pre_post, scales.post_scale, tap.post)
        logits = post @ w.logits + w.logits_bias + tap.logits
        sample = _sample(logits, x.noise, unimix)
        seen = Residuals(deter, stoch, shared, pre_deter, pre_stoch, pre_hidden, hidden, pre_post, post)
        return (new, sample), ((new, sample, logits), seen)

    _, (outputs, seen) = jax.lax.scan(step, carry, (inputs, taps), unroll=unroll)
    return outputs, seen


@jax.custom_vjp
def _norm_silu(x: Array, scale: Array, tap: Array) -> Array:
    """The tap is zero and takes the gradient at the scaled norm."""
    return norm_silu(x, scale)


def _norm_silu_forward(x: Array, scale: Array, tap: Array) -> tuple[Array, tuple[Array, Array]]:
    return norm_silu(x, scale), (x, scale)


def _norm_silu_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, None, Array]:
    x, scale = saved
    x_grad, normed_grad, _ = norm_silu_gradient(x, scale, grad)
    return x_grad, None, normed_grad.astype(x.dtype)


_norm_silu.defvjp(_norm_silu_forward, _norm_silu_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _sample(logits: Float[Array, "n sc"], noise: Float[Array, "n s c"], unimix: float) -> Float[Array, "n sc"]:
    log_probs = mix_uniform(logits.reshape(noise.shape), unimix)
    onehot = jax.nn.one_hot(choose(log_probs, noise), noise.shape[-1], dtype=logits.dtype)
    return onehot.reshape(logits.shape)


def _sample_forward(logits: Array, noise: Array, unimix: float) -> tuple[Array, tuple[Array, Array]]:
    return _sample(logits, noise, unimix), (logits, noise)


def _sample_backward(unimix: float, saved: tuple[Array, Array], grad: Array) -> tuple[Array, None]:
    """Straight through: the gradient of the probabilities."""
    logits, noise = saved
    probs = jax.nn.softmax(logits.reshape(noise.shape).astype(jnp.float32))
    wide = grad.reshape(noise.shape).astype(jnp.float32) * (1 - unimix)
    result = probs * (wide - jnp.sum(wide * probs, -1, keepdims=True))
    return result.reshape(logits.shape).astype(logits.dtype), None


_sample.defvjp(_sample_forward, _sample_backward)


def _no_taps(inputs: Inputs, weights: Weights) -> Taps:
    t, n = inputs.keep.shape[:2]
    w = weights
    sizes = (w.deter_bias, w.stoch_bias, w.hidden_scale, w.gates_bias, w.post_scale, w.logits_bias)
    return Taps(*(jnp.zeros((t, n, x.shape[0]), inputs.action.dtype) for x in sizes))


def _weight_gradients(blocks: int, weights: Weights, seen: Residuals, deter: Array, grads: Taps) -> Weights:
    at_deter, deter_scale = _through_norm(seen.pre_deter, weights.deter_scale, grads.deter)
    at_stoch, stoch_scale = _through_norm(seen.pre_stoch, weights.stoch_scale, grads.stoch)
    at_hidden, hidden_scale = _through_norm(seen.pre_hidden, weights.hidden_scale, grads.hidden)
    at_post, post_scale = _through_norm(seen.pre_post, weights.post_scale, grads.post)
    return Weights(
        _product(seen.old_deter, at_deter),
        _total(at_deter),
        deter_scale,
        _product(seen.old_stoch, at_stoch),
        _total(at_stoch),
        stoch_scale,
        _block_product(seen.old_deter, at_hidden, blocks),
        _product(seen.shared, at_hidden),
        hidden_scale,
        _block_product(seen.hidden, grads.gates, blocks),
        _total(grads.gates),
        _product(deter, at_post),
        post_scale,
        _product(seen.post, grads.logits),
        _total(grads.logits),
    )


def _through_norm(x: Array, scale: Array, normed_grad: Array) -> tuple[Array, Array]:
    """From the gradient at the scaled norm to those at its input and at its scale."""
    unit, inverse = unit_norm(x)
    normed_grad = normed_grad.astype(jnp.float32)
    x_grad = unit_norm_gradient(unit, inverse, normed_grad * scale)
    return x_grad.astype(x.dtype), column_sum(normed_grad * unit)


def _product(x: Float[Array, "t n a"], grad: Float[Array, "t n b"]) -> Float[Array, "a b"]:
    return jnp.einsum("tna,tnb->ab", x, grad, preferred_element_type=jnp.float32)


def _block_product(x: Float[Array, "t n a"], grad: Float[Array, "t n b"], blocks: int) -> Float[Array, "g i o"]:
    x = x.reshape(*x.shape[:2], blocks, -1)
    grad = grad.reshape(*grad.shape[:2], blocks, -1)
    return jnp.einsum("tngi,tngo->gio", x, grad, preferred_element_type=jnp.float32)


def _total(grad: Float[Array, "t n a"]) -> Float[Array, " a"]:
    return column_sum(grad)


def _observe_plain(
    rssm: RSSM, state: State, tokens: Array, actions: Array, resets: Array, noise: Array
) -> tuple[State, Array]:
    def step(state: State, given: tuple[Array, ...]) -> tuple[State, tuple[State, Array]]:
        state, log_probs = rssm.observe(state, *given)
        return state, (state, log_probs)

    _, (states, log_probs) = jax.lax.scan(step, state, (tokens, actions, resets, noise))
    return states, log_probs
