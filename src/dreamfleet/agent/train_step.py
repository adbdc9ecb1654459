"""One update of everything the agent learns, as a pure function to be compiled once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PRNGKeyArray

from dreamfleet.agent.parameters import path_name
from dreamfleet.core.hyperparameters import DreamerOptions
from dreamfleet.core.spaces import STEP_KEYS
from dreamfleet.model.dreamer_model import Batch, ComputeSettings, DreamerModel, Norms, Outcome, move_norms, world_loss
from dreamfleet.model.heads import TwoHotHead
from dreamfleet.model.normalize import NormState
from dreamfleet.model.optimizer import SMALL, LaPropState, decays, leaf_norms, learning_rate, make_optimizer
from dreamfleet.model.rssm import State, class_indices
from dreamfleet.model.spaces import Spaces

MIN_SCALE, MAX_SCALE = 1e-4, 1e5
GOOD_STEPS = 1000  # after so many updates without overflow the loss is scaled higher


class LossScale(NamedTuple):
    """Keeps gradients within the range of float16; other dtypes need none and leave it at 1."""

    scale: Array
    good: Array

    @classmethod
    def initial(cls, dtype: Any) -> LossScale:
        start = 1e4 if dtype == jnp.float16 else 1.0
        return cls(jnp.asarray(start, jnp.float32), jnp.zeros((), jnp.int32))

    def after(self, finite: Array) -> LossScale:
        good = jnp.where(finite, self.good + 1, 0)
        grown = jnp.where(good >= GOOD_STEPS, 2.0, 1.0)
        scale = self.scale * jnp.where(finite, grown, 0.5)
        return LossScale(jnp.clip(scale, MIN_SCALE, MAX_SCALE), jnp.where(good >= GOOD_STEPS, 0, good))


class TrainState(eqx.Module):
    """All that an update changes."""

    world: DreamerModel
    slow: TwoHotHead
    norms: Norms
    opt: Any
    loss_scale: LossScale
    updates: Array


class TrainCarry(NamedTuple):
    """What one chunk of a window hands to the next: the state at its end and the last action in it."""

    state: State
    action: dict[str, Array]


@dataclass(frozen=True)
class Recipe:
    """What an update is made of besides its data."""

    options: DreamerOptions
    settings: ComputeSettings
    obs_space: Spaces
    act_space: Spaces
    context: int = 1
    accumulate: int = 1
    priorities: bool = False  # replay draws by them: the model loss of each step


class Step(NamedTuple):
    state: TrainState
    carry: TrainCarry
    latents: dict[str, Array]  # batch first, with what else replay keeps of each step
    metrics: dict[str, Array]
    health: Array  # all finite if all is well
    health_names: list[str]


def init_state(key: PRNGKeyArray, recipe: Recipe) -> TrainState:
    world = DreamerModel(key, recipe.obs_space, recipe.act_space, recipe.options)
    return TrainState(
        world,
        jax.tree.map(jnp.copy, world.val),
        Norms(*map(NormState.initial, (recipe.options.retnorm, recipe.options.valnorm, recipe.options.advnorm))),
        make_optimizer(recipe.options.opt).init(world),
        LossScale.initial(recipe.settings.dtype),
        jnp.zeros((), jnp.int32),
    )


def init_carry(rows: int, recipe: Recipe) -> TrainCarry:
    dyn, dtype = recipe.options.dyn, recipe.settings.dtype
    state = State(jnp.zeros((rows, dyn.deter), dtype), jnp.zeros((rows, dyn.stoch, dyn.classes), dtype))
    action = {key: jnp.zeros((rows, *space.shape), space.dtype) for key, space in recipe.act_space.items()}
    return TrainCarry(state, action)


def cut_context(carry: TrainCarry, data: Mapping[str, Array], recipe: Recipe) -> tuple[State, Batch]:
    """Drops the context steps. The first chunk of a window starts from the latents stored with them."""
    context, dtype = recipe.context, recipe.settings.dtype
    fresh = data["consec"] == 0
    steps = {key: data[key][:, context:] for key in (*recipe.obs_space, *recipe.act_space, *STEP_KEYS)}
    if context:
        classes = carry.state.stoch.shape[-1]
        stored = State(
            data["dyn/deter"][:, context - 1].astype(dtype),
            jax.nn.one_hot(data["dyn/stoch"][:, context - 1], classes, dtype=dtype),
        )
        before = {key: data[key][:, context - 1] for key in recipe.act_space}
    else:
        stored = jax.tree.map(jnp.zeros_like, carry.state)
        before = jax.tree.map(jnp.zeros_like, carry.action)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(fresh.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    state, first = jax.tree.map(choose, (stored, before), (carry.state, carry.action))
    actions = {key: steps[key] for key in recipe.act_space}
    last = {key: jnp.concatenate([first[key][:, None], actions[key][:, :-1]], 1) for key in actions}
    obs = {key: steps[key] for key in recipe.obs_space}
    return state, Batch(obs, actions, last, *(steps[key] for key in STEP_KEYS))


def train_step(
    train: TrainState, carry: TrainCarry, data: Mapping[str, Array], key: PRNGKeyArray, recipe: Recipe
) -> Step:
    key = jax.random.fold_in(key, train.updates)
    start, batch = cut_context(carry, data, recipe)
    outcome, grads = _gradients(train, start, batch, key, recipe)
    flat = jax.tree_util.tree_flatten_with_path(grads)[0]
    sizes = jnp.stack(leaf_norms([grad for _, grad in flat]))
    grad_norm = jnp.linalg.norm(sizes)
    updates, opt = make_optimizer(recipe.options.opt).update(grads, train.opt, train.world)
    world = eqx.apply_updates(train.world, updates)
    count = train.updates + 1
    slow = _follow(train.slow, world.val, train.updates, recipe.options)
    new = TrainState(world, slow, outcome.norms, opt, train.loss_scale, count)
    if recipe.settings.dtype == jnp.float16:
        new = _unless_overflow(jnp.isfinite(grad_norm), new, train)
    health = jnp.concatenate([jnp.stack(list(outcome.losses.values())), sizes])
    if recipe.settings.dtype == jnp.float16:  # an overflow is expected now and then, while there is room below
        health = jnp.where(train.loss_scale.scale > MIN_SCALE, 0.0, health)
    names = [f"the loss {name}" for name in outcome.losses] + [f"the gradient of {path_name(path)}" for path, _ in flat]
    metrics = {
        **outcome.metrics,
        "opt/loss": _total(outcome.losses, recipe.options),
        "opt/updates": count.astype(jnp.float32),
        "opt/param_count": jnp.asarray(float(sum(grad.size for _, grad in flat))),
        "opt/grad_norm": grad_norm,
        "opt/grad_rms": grad_norm / jnp.sqrt(float(sum(grad.size for _, grad in flat))),
    }
    latents = _latents(outcome.states)
    if recipe.priorities:
        latents["priority"] = outcome.model_loss.T
    end = jax.tree.map(lambda x: x[-1], outcome.states)
    carry = TrainCarry(end, {name: action[:, -1] for name, action in batch.actions.items()})
    return Step(new, carry, latents, metrics, health, names)


def _gradients(train: TrainState, start: State, batch: Batch, key: PRNGKeyArray, recipe: Recipe) -> tuple[Outcome, Any]:
    def scaled_loss(
        world: DreamerModel, norms: Norms, start: State, batch: Batch, key: PRNGKeyArray
    ) -> tuple[Array, Outcome]:
        loss, outcome = world_loss(world, train.slow, norms, start, batch, key, recipe.options, recipe.settings)
        return loss * train.loss_scale.scale, outcome

    compute = jax.grad(scaled_loss, has_aux=True)
    parts = recipe.accumulate
    if parts == 1:
        grads, outcome = compute(train.world, train.norms, start, batch, key)
    else:
        grads, outcome = _accumulate(compute, train.world, train.norms, start, batch, key, recipe)
    if recipe.settings.dtype == jnp.float16:
        grads = jax.tree.map(lambda grad: grad / train.loss_scale.scale, grads)
    return outcome, grads


def _accumulate(
    compute: Any, world: Any, norms: Norms, start: Any, batch: Any, key: PRNGKeyArray, recipe: Recipe
) -> tuple[Any, Outcome]:
    """The mean over parts of the batch, one after the other.

    Each part is judged by the running statistics as it alone would move them. They move once, by all parts together.
    """
    parts = recipe.accumulate
    split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), (start, batch))

    def step(total: Any, given: Any) -> tuple[Any, Outcome]:
        (start, batch), key = given
        grads, outcome = compute(world, norms, start, batch, key)
        return jax.tree.map(lambda a, b: a + b / parts, total, grads), outcome

    zeros = jax.tree.map(jnp.zeros_like, world)
    grads, outcomes = jax.lax.scan(step, zeros, (split, jax.random.split(key, parts)))
    states, model_loss = jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), (outcomes.states, outcomes.model_loss)
    )
    losses, metrics = jax.tree.map(lambda x: x.mean(0), (outcomes.losses, outcomes.metrics))
    moved = move_norms(norms, outcomes.seen, recipe.options)
    return grads, Outcome(losses, states, model_loss, moved, outcomes.seen, metrics)


def _total(losses: Mapping[str, Array], options: DreamerOptions) -> Array:
    return jnp.asarray(sum(options.loss_scales.of(name) * loss for name, loss in losses.items()))


def _follow(slow: TwoHotHead, fast: TwoHotHead, before: Array, options: DreamerOptions) -> TwoHotHead:
    """`before`: updates made before this one. It follows the first one, and every so many after it."""
    rate = jnp.where(before % options.slowvalue.every == 0, options.slowvalue.rate, 0.0)
    return jax.tree.map(lambda s, v: rate * v + (1 - rate) * s, slow, fast)


def _unless_overflow(finite: Array, new: TrainState, old: TrainState) -> TrainState:
    """An update that overflowed changes nothing but the scale of the loss."""
    kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)
    return eqx.tree_at(lambda state: state.loss_scale, kept, old.loss_scale.after(finite))


def _latents(states: State) -> dict[str, Array]:
    return {
        "dyn/deter": states.deter.swapaxes(0, 1).astype(jnp.bfloat16),
        "dyn/stoch": class_indices(states.stoch).swapaxes(0, 1),
    }


def sizes(train: TrainState, recipe: Recipe) -> dict[str, Array]:
    """Of the parameters and of the update that led to them: worked out from the optimiser's state, so that only those
    updates pay for it whose metrics somebody reads.
    """
    options = recipe.options.opt
    laprop = next(part for part in train.opt if isinstance(part, LaPropState))
    step = laprop.step.astype(jnp.float32)
    rate = jnp.where(step > 0, learning_rate(options)(step - 1), 0.0)
    decay = decays(train.world) if options.wd else jax.tree.map(lambda _: False, train.world)

    def update(param: Array, momentum: Array, decayed: bool) -> Array:
        """Of old + update = param, where the update is -rate * (momentum + wd * old)."""
        scaled = momentum / jnp.maximum(1 - options.beta1**step, 1e-8)
        return rate * (scaled + options.wd * param) / (1 - rate * options.wd) if decayed else rate * scaled

    updates = jax.tree.map(update, train.world, laprop.momentum, decay)
    return {"opt/param_rms": _rms(train.world), "opt/update_rms": _rms(updates)}


def _rms(tree: Any) -> Array:
    leaves = [leaf.reshape(-1) for leaf in jax.tree.leaves(tree)]
    parts = [leaf for leaf in leaves if leaf.size > SMALL]
    parts.append(jnp.concatenate([leaf for leaf in leaves if leaf.size <= SMALL]))  # many, and quicker compiled as one
    total = jnp.sum(jnp.stack([jnp.sum(jnp.square(part)) for part in parts]))
    return jnp.sqrt(total / sum(leaf.size for leaf in leaves))
