"""All trained networks together, and the one loss that trains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PRNGKeyArray

from dreamfleet.core.hyperparameters import DreamerOptions
from dreamfleet.core.spaces import Space
from dreamfleet.model import normalize
from dreamfleet.model.decoder import Decoder
from dreamfleet.model.distributions import bernoulli_loss, categorical_entropy, gumbel
from dreamfleet.model.encoder import Encoder
from dreamfleet.model.heads import BinaryHead, PolicyHead, TwoHotHead, draw_noise, sample_all
from dreamfleet.model.imagination import imagine
from dreamfleet.model.losses import actor_loss, continue_target, critic_loss, latent_losses, rollout_weights, sg
from dreamfleet.model.normalize import NormState
from dreamfleet.model.returns import lambda_return
from dreamfleet.model.rssm import RSSM, State
from dreamfleet.model.rssm_scan import observe_sequence
from dreamfleet.model.spaces import width
from dreamfleet.model.vectors import action_vector


class DreamerModel(eqx.Module):
    """What the optimiser trains."""

    enc: Encoder
    dyn: RSSM
    dec: Decoder
    rew: TwoHotHead
    con: BinaryHead
    pol: PolicyHead
    val: TwoHotHead

    def __init__(
        self,
        key: PRNGKeyArray,
        obs_space: Mapping[str, Space],
        act_space: Mapping[str, Space],
        options: DreamerOptions,
    ) -> None:
        keys = jax.random.split(key, 7)
        rssm = options.dyn
        features = rssm.deter + rssm.stoch * rssm.classes
        actions = sum(width(space) for space in act_space.values())
        self.enc = Encoder(keys[0], obs_space, options.enc)
        self.dyn = RSSM(keys[1], rssm, actions, self.enc.size)
        self.dec = Decoder(keys[2], obs_space, options.dec, rssm)
        self.rew = TwoHotHead(keys[3], features, options.rewhead)
        self.con = BinaryHead(keys[4], features, options.conhead)
        self.pol = PolicyHead(keys[5], features, act_space, options.policy)
        self.val = TwoHotHead(keys[6], features, options.value)


class Norms(NamedTuple):
    ret: NormState
    val: NormState
    adv: NormState


class NormInputs(NamedTuple):
    """What the running statistics are of: each array moves them once."""

    ret: tuple[Array, ...]
    val: tuple[Array, ...]
    adv: tuple[Array, ...]


class Batch(NamedTuple):
    """A sequence to train on, batch first as it comes from replay."""

    obs: dict[str, Array]
    actions: dict[str, Array]  # chosen at each step
    last_actions: dict[str, Array]  # that led to each step
    reward: Array
    is_first: Array
    is_last: Array
    is_terminal: Array


class Outcome(NamedTuple):
    losses: dict[str, Array]  # unscaled means
    states: State  # of every step, time first
    model_loss: Array  # likewise: of its latents and observations, unscaled
    norms: Norms
    seen: NormInputs
    metrics: dict[str, Array]


class ComputeSettings(NamedTuple):
    """How to compute, as opposed to what."""

    dtype: Any = jnp.bfloat16
    unroll_observe: int = 1
    unroll_imagine: int = 1
    kernels: bool = False  # hand-written ones, where they are faster


def world_loss(
    world: DreamerModel,
    slow: TwoHotHead,
    norms: Norms,
    start: State,
    batch: Batch,
    key: PRNGKeyArray,
    options: DreamerOptions,
    settings: ComputeSettings,
) -> tuple[Array, Outcome]:
    """The scaled sum of all losses."""
    observe_key, imagine_key, last_key = jax.random.split(key, 3)
    states, post = observe(world, start, batch, observe_key, settings)
    losses, metrics = _model_losses(world, states, post, batch, options, settings)
    of_model = [loss for name, loss in losses.items() if name in ("dyn", "rep") or name.startswith("rec/")]
    imagined = _imagine(world, slow, norms, states, imagine_key, last_key, options, settings)
    losses.update(imagined.losses)
    metrics.update(imagined.metrics)
    norms, seen = imagined.norms, NormInputs((imagined.returns,), (imagined.returns,), (imagined.advantage,))
    if options.repval_loss:
        losses["repval"], real = _replay_critic_loss(world, slow, norms.val, states, imagined.returns, batch, options)
        norms = norms._replace(val=normalize.update(options.valnorm, norms.val, real))
        seen = seen._replace(val=(*seen.val, real))
    means = {name: jnp.mean(loss) for name, loss in losses.items()}
    total = sum(options.loss_scales.of(name) * mean for name, mean in means.items())
    metrics.update({f"loss/{name}": mean for name, mean in means.items()})
    return jnp.asarray(total, jnp.float32), Outcome(means, states, sg(jnp.stack(of_model).sum(0)), norms, seen, metrics)


def observe(
    world: DreamerModel, start: State, batch: Batch, key: PRNGKeyArray, settings: ComputeSettings
) -> tuple[State, Array]:
    """States and posterior log-probabilities, time first."""
    tokens = world.enc(batch.obs, settings.dtype, settings.kernels).swapaxes(0, 1)
    actions = action_vector(world.pol.spaces, batch.last_actions, settings.dtype).swapaxes(0, 1)
    resets = batch.is_first.swapaxes(0, 1)
    options = world.dyn.options
    noise = gumbel(key, (*resets.shape, options.stoch, options.classes))
    return observe_sequence(world.dyn, start, tokens, actions, resets, noise, settings.unroll_observe, settings.kernels)


def _model_losses(
    world: DreamerModel, states: State, post: Array, batch: Batch, options: DreamerOptions, settings: ComputeSettings
) -> tuple[dict[str, Array], dict[str, Array]]:
    prior = world.dyn.prior_log_probs(states.deter)
    dyn, rep = latent_losses(post, prior, options.dyn.free_nats)
    targets = {key: value.swapaxes(0, 1) for key, value in batch.obs.items()}
    features = states.features()
    seen = features if options.reward_grad else sg(features)
    cont = continue_target(batch.is_terminal.T, options.horizon, options.contdisc)
    losses = {
        "dyn": dyn,
        "rep": rep,
        "rew": world.rew(seen).loss(batch.reward.T),
        "con": bernoulli_loss(world.con(features), cont),
    }
    decoded = world.dec.losses(world.dec.predict(states, settings.kernels), targets)
    losses.update({f"rec/{key}": loss for key, loss in decoded.items()})
    entropy = {"dyn_ent": prior, "rep_ent": post}
    metrics = {name: jnp.mean(jnp.sum(categorical_entropy(sg(probs)), -1)) for name, probs in entropy.items()}
    return losses, metrics


class Imagined(NamedTuple):
    losses: dict[str, Array]
    returns: Array  # one less than there are states
    advantage: Array
    norms: Norms
    metrics: dict[str, Array]


def _imagine(
    world: DreamerModel,
    slow: TwoHotHead,
    norms: Norms,
    states: State,
    key: PRNGKeyArray,
    last_key: PRNGKeyArray,
    options: DreamerOptions,
    settings: ComputeSettings,
) -> Imagined:
    """Rolls out from the last steps of every sequence and judges what comes of it."""
    steps = states.deter.shape[0]
    recent = min(options.imag_last or steps, steps)
    start = jax.tree.map(lambda x: x[-recent:].reshape(-1, *x.shape[2:]), states)
    rollout = imagine(world.dyn, world.pol, start, options.imag_length, key, settings.unroll_imagine)
    features = rollout.features
    if options.ac_grads:
        features = features.at[0].set(start.features())
    dists = world.pol(features)
    last_noise = draw_noise(world.pol.spaces, last_key, (1, features.shape[1]))
    last = sample_all(jax.tree.map(lambda x: x[-1:], sg(dists)), last_noise)
    actions = {name: jnp.concatenate([rollout.actions[name], last[name]]) for name in last}
    reward = sg(world.rew)(features).mean()
    cont = jax.nn.sigmoid(sg(world.con)(features))
    value = world.val(features)
    slow_value = slow(features).mean()
    return _judge(norms, reward, cont, value, slow_value, dists, actions, options)


def _judge(
    norms: Norms,
    reward: Array,
    cont: Array,
    value: Any,
    slow_value: Array,
    dists: Mapping[str, Any],
    actions: Mapping[str, Array],
    options: DreamerOptions,
) -> Imagined:
    disc = 1.0 if options.contdisc else 1 - 1 / options.horizon
    val_offset, val_scale = normalize.statistics(options.valnorm, norms.val)
    predicted = value.mean() * val_scale + val_offset
    slow_predicted = slow_value * val_scale + val_offset
    target = slow_predicted if options.imag_loss.slowtar else predicted
    live, keep = disc * cont, jnp.full_like(cont, options.imag_loss.lam)
    returns = sg(lambda_return(reward, target, live, keep))
    ret_norm = normalize.update(options.retnorm, norms.ret, returns)
    ret_offset, ret_scale = normalize.statistics(options.retnorm, ret_norm)
    advantage = sg((returns - target[:-1]) / ret_scale)
    adv_norm = normalize.update(options.advnorm, norms.adv, advantage)
    adv_offset, adv_scale = normalize.statistics(options.advnorm, adv_norm)
    scaled_advantage = (advantage - adv_offset) / adv_scale
    weight = rollout_weights(cont, disc)
    early = jax.tree.map(lambda x: x[:-1], dists)
    chosen = {name: action[:-1] for name, action in actions.items()}
    val_norm = normalize.update(options.valnorm, norms.val, returns)
    val_offset, val_scale = normalize.statistics(options.valnorm, val_norm)
    normed = (returns - val_offset) / val_scale
    slowreg = options.imag_loss.slowreg
    losses = {
        "policy": actor_loss(early, chosen, scaled_advantage, weight[:-1], options.imag_loss.actent),
        "value": weight[:-1] * critic_loss(_cut(value), normed, slow_value[:-1], slowreg),
    }
    scaled = (returns - ret_offset) / ret_scale
    metrics = {
        "adv": advantage.mean(),
        "adv_std": advantage.std(),
        "adv_mag": jnp.abs(advantage).mean(),
        "rew": reward.mean(),
        "con": cont.mean(),
        "ret": scaled.mean(),
        "val": predicted.mean(),
        "tar": normed.mean(),
        "weight": weight.mean(),
        "slowval": slow_predicted.mean(),
        "ret_min": scaled.min(),
        "ret_max": scaled.max(),
        "ret_rate": (jnp.abs(scaled) >= 1).mean(),
    }
    for name, dist in early.items():
        entropy = dist.entropy().mean()
        metrics[f"ent/{name}"] = entropy
        if not dist.space.shape:
            metrics[f"rand/{name}"] = dist.randomness(entropy)
    return Imagined(losses, returns, advantage, Norms(ret_norm, val_norm, adv_norm), metrics)


def _cut(value: Any) -> Any:
    return jax.tree.map(lambda x: x[:-1], value)


def move_norms(norms: Norms, seen: NormInputs, options: DreamerOptions) -> Norms:
    """The running statistics after an update, from those before it."""
    moved = {}
    for name in norms._fields:
        moved[name] = getattr(norms, name)
        for values in getattr(seen, name):
            moved[name] = normalize.update(getattr(options, f"{name}norm"), moved[name], values)
    return Norms(**moved)


def _replay_critic_loss(
    world: DreamerModel,
    slow: TwoHotHead,
    val_norm: NormState,
    states: State,
    returns: Array,
    batch: Batch,
    options: DreamerOptions,
) -> tuple[Array, Array]:
    """The critic on the real sequence, which the imagined returns take over where it ends. Its returns, the second
    result, count for the critic's running statistics too.
    """
    steps = states.deter.shape[0]
    recent = min(options.imag_last or steps, steps)
    last, terminal, reward = (
        x.T[-recent:].astype(jnp.float32) for x in (batch.is_last, batch.is_terminal, batch.reward)
    )
    boot = returns[0].reshape(recent, -1)
    features = jax.tree.map(lambda x: x[-recent:], states).features()
    value = world.val(features if options.repval_grad else sg(features))
    slow_value = slow(sg(features)).mean()
    live = (1 - 1 / options.horizon) * (1 - terminal)
    keep = options.repl_loss.lam * (1 - last)
    real = lambda_return(reward, boot, live, keep)
    val_offset, val_scale = normalize.statistics(options.valnorm, normalize.update(options.valnorm, val_norm, real))
    loss = critic_loss(_cut(value), (real - val_offset) / val_scale, slow_value[:-1], options.repl_loss.slowreg)
    return (1 - last[:-1]) * loss, real
