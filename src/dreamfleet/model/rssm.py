"""The recurrent state-space model: a block GRU over `deter` and categorical latents `stoch`.

Plain, one step at a time. `rssm_scan` has the fast form for whole sequences; both compute the same function.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from dreamfleet.core.hyperparameters import RSSMOptions
from dreamfleet.model.distributions import choose, mix_uniform, straight_through
from dreamfleet.model.layers import MLP, BlockLinear, Dense, Linear, Norm, add_bias, block_matmul, matmul

UPDATE_BIAS = 1.0  # the update gate starts nearly closed


class State(NamedTuple):
    """Of the recurrent model, in the compute dtype."""

    deter: Float[Array, "*n d"]
    stoch: Float[Array, "*n s c"]

    def features(self) -> Float[Array, "*n f"]:
        return jnp.concatenate([self.deter, flat(self.stoch)], -1)


def flat(stoch: Float[Array, "*n s c"]) -> Float[Array, "*n sc"]:
    return stoch.reshape(*stoch.shape[:-2], -1)


class Core(eqx.Module):
    """From the last state and action to the next `deter`."""

    from_deter: Dense
    from_stoch: Dense
    from_action: Dense
    hidden: tuple[BlockLinear, ...]
    norms: tuple[Norm, ...]
    gates: BlockLinear
    blocks: int = eqx.field(static=True)

    def __init__(self, key: PRNGKeyArray, options: RSSMOptions, actions: int) -> None:
        keys = jax.random.split(key, 4 + options.dynlayers)
        hidden, deter, blocks = options.hidden, options.deter, options.blocks
        self.from_deter = Dense(keys[0], deter, hidden)
        self.from_stoch = Dense(keys[1], options.stoch * options.classes, hidden)
        self.from_action = Dense(keys[2], actions, hidden)
        widths = [deter + blocks * 3 * hidden] + [deter] * (options.dynlayers - 1)
        self.hidden = tuple(BlockLinear(key, width, deter, blocks) for key, width in zip(keys[4:], widths, strict=True))
        self.norms = tuple(Norm(deter) for _ in widths)
        self.gates = BlockLinear(keys[3], deter, 3 * deter, blocks)
        self.blocks = blocks

    def __call__(
        self, deter: Float[Array, "*n d"], stoch: Float[Array, "*n sc"], action: Float[Array, "*n a"]
    ) -> Float[Array, "*n d"]:
        return self.advance(deter, self.from_deter(deter), self.from_stoch(stoch), action)

    def advance(
        self, deter: Float[Array, "*n d"], by_deter: Array, by_stoch: Array, action: Float[Array, "*n a"]
    ) -> Float[Array, "*n d"]:
        """From what `from_deter` and `from_stoch` have made of the last state."""
        x = self._first(deter, jnp.concatenate([by_deter, by_stoch, self.from_action(bounded(action))], -1))
        for layer, norm in zip(self.hidden[1:], self.norms[1:], strict=True):
            x = norm.silu(layer(x))
        return gru(block_matmul(x, self.gates.kernel), self.gates.bias, deter, self.blocks)

    def _first(self, deter: Float[Array, "*n d"], shared: Float[Array, "*n h3"]) -> Float[Array, "*n d"]:
        """Every block sees its slice of deter and all of `shared`. The latter is one product instead of a copy each."""
        layer, width = self.hidden[0], deter.shape[-1] // self.blocks
        own, common = layer.kernel[:, :width], join_blocks(layer.kernel[:, width:])
        x = block_matmul(deter, own) + matmul(shared, common)
        return self.norms[0].silu(add_bias(x, layer.bias))


def join_blocks(kernel: Float[Array, "g i o"]) -> Float[Array, "i go"]:
    """What every block multiplies the same input by, as one matrix."""
    return kernel.transpose(1, 0, 2).reshape(kernel.shape[1], -1)


def bounded(action: Float[Array, "*n a"]) -> Float[Array, "*n a"]:
    return action / jax.lax.stop_gradient(jnp.maximum(1, jnp.abs(action)))


def gru(
    gates: Float[Array, "*n d3"], bias: Float[Array, " d3"], deter: Float[Array, "*n d"], blocks: int
) -> Float[Array, "*n d"]:
    """Within each block the gates lie in the order reset, candidate, update. The bias is added to each by itself: added
    to all of them at once, it keeps a CPU from computing several numbers at a time.
    """
    parts, biases = gates.reshape(*gates.shape[:-1], blocks, 3, -1), bias.reshape(blocks, 3, -1)
    reset, candidate, update = (_biased(parts[..., i, :], biases[:, i]) for i in range(3))
    candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
    update = jax.nn.sigmoid(update - UPDATE_BIAS)
    old = deter.reshape(candidate.shape).astype(jnp.float32)
    new = update * candidate + (1 - update) * old
    return new.reshape(deter.shape).astype(deter.dtype)


def _biased(gate: Float[Array, "*n g e"], bias: Float[Array, "g e"]) -> Float[Array, "*n g e"]:
    flat_gate = gate.reshape(*gate.shape[:-2], -1)
    return add_bias(flat_gate, bias.reshape(-1)).reshape(gate.shape).astype(jnp.float32)


class RSSM(eqx.Module):
    core: Core
    post: tuple[Dense, ...]
    post_logits: Linear
    prior: MLP
    prior_logits: Linear
    options: RSSMOptions = eqx.field(static=True)

    def __init__(self, key: PRNGKeyArray, options: RSSMOptions, actions: int, tokens: int) -> None:
        keys = jax.random.split(key, 4 + options.obslayers)
        hidden, size = options.hidden, options.stoch * options.classes
        width = tokens if options.absolute else options.deter + tokens
        widths = [width] + [hidden] * (options.obslayers - 1)
        self.core = Core(keys[0], options, actions)
        self.post = tuple(Dense(key, width, hidden) for key, width in zip(keys[4:], widths, strict=True))
        self.post_logits = Linear(keys[1], hidden, size, options.outscale)
        self.prior = MLP(keys[2], options.deter, hidden, options.imglayers)
        self.prior_logits = Linear(keys[3], hidden, size, options.outscale)
        self.options = options

    def initial(self, n: int, dtype: jnp.dtype) -> State:
        options = self.options
        return State(jnp.zeros((n, options.deter), dtype), jnp.zeros((n, options.stoch, options.classes), dtype))

    def observe(
        self,
        state: State,
        token: Float[Array, "n k"],
        action: Float[Array, "n a"],
        reset: Bool[Array, " n"],
        noise: Float[Array, "n s c"],
    ) -> tuple[State, Float[Array, "n s c"]]:
        """One step with an observation; `action` is the one that led to it. Returns the log-probabilities as well."""
        deter, stoch, action = (jnp.where(reset[:, None], 0, x) for x in (state.deter, flat(state.stoch), action))
        deter = self.core(deter, stoch, action)
        x = token if self.options.absolute else jnp.concatenate([deter, token], -1)
        for layer in self.post:
            x = layer(x)
        log_probs = self.log_probs(self.post_logits(x))
        return State(deter, self.sample(log_probs, noise, deter.dtype)), log_probs

    def imagine(self, state: State, action: Float[Array, "n a"], noise: Float[Array, "n s c"]) -> State:
        """One step without an observation."""
        deter = self.core(state.deter, flat(state.stoch), action)
        return State(deter, self.sample(self.prior_log_probs(deter), noise, deter.dtype))

    def prior_log_probs(self, deter: Float[Array, "*n d"]) -> Float[Array, "*n s c"]:
        return self.log_probs(self.prior_logits(self.prior(deter)))

    def prior_after_first(self, x: Float[Array, "*n h"]) -> Float[Array, "*n s c"]:
        return self.log_probs(self.prior_logits(self.prior.after_first(x)))

    def log_probs(self, logits: Float[Array, "*n sc"]) -> Float[Array, "*n s c"]:
        options = self.options
        return mix_uniform(logits.reshape(*logits.shape[:-1], options.stoch, options.classes), options.unimix)

    def sample(
        self, log_probs: Float[Array, "*n s c"], noise: Float[Array, "*n s c"], dtype: jnp.dtype
    ) -> Float[Array, "*n s c"]:
        """One-hot with the gradient of the probabilities."""
        classes = choose(log_probs, noise)
        onehot = jax.nn.one_hot(classes, log_probs.shape[-1], dtype=jnp.float32)
        return straight_through(onehot, jnp.exp(log_probs)).astype(dtype)


def class_indices(stoch: Float[Array, "*n s c"]) -> Int[Array, "*n s"]:
    return jnp.argmax(stoch, -1).astype(jnp.uint8)
