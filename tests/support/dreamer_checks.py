"""Checks of the whole loss that are run on the model, and on mutants of it that must not pass."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.agent import train_step
from dreamfleet.agent.train_step import Recipe
from dreamfleet.core.hyperparameters import DreamerOptions
from dreamfleet.model import dreamer_model as world_module
from dreamfleet.model import rssm_scan
from dreamfleet.model.distributions import make_bins
from dreamfleet.model.dreamer_model import Batch, DreamerModel, Norms
from dreamfleet.model.imagination import Rollout
from dreamfleet.model.normalize import NormState
from dreamfleet.model.rssm import State
from dreamfleet.model.spaces import Spaces
from support import dreamer_reference as ref
from support.tiny_dreamer import (
    CHOICE,
    FLOAT32,
    VECTOR,
    lively,
    make_batch,
    make_data,
    make_recipe,
    make_world,
    tiny_options,
)

ROWS, STEPS = 2, 4


def calm(head: Any) -> Any:
    """Rare far bins, so that a prediction is a number of ordinary size."""
    far = np.abs(ref.symlog(make_bins(len(head.out.bias))))
    return eqx.tree_at(lambda head: head.out.bias, head, head.out.bias - jnp.asarray(far, jnp.float32))


class Case:
    """A world with given states and a given rollout, so that no sample stands between it and the reference."""

    def __init__(self, options: DreamerOptions, obs: Spaces = VECTOR, act: Spaces = CHOICE) -> None:
        self.options, self.obs, self.act = options, obs, act
        world = make_world(options, obs, act)
        self.world: DreamerModel = eqx.tree_at(lambda w: (w.rew, w.val), world, (calm(world.rew), calm(world.val)))
        self.slow = calm(make_world(options, obs, act, seed=5).val)
        self.batch = make_batch(options, obs, act, ROWS, STEPS)
        ret = NormState(jnp.float32(-80.0), jnp.float32(120.0))
        self.norms = Norms(ret, NormState.initial(options.valnorm), NormState.initial(options.advnorm))
        self.ret = ref.Normalizer(options.retnorm, -80.0, 120.0)
        self.val, self.adv = ref.Normalizer(options.valnorm), ref.Normalizer(options.advnorm)
        rng = np.random.default_rng(3)
        self.states = self._states(rng, (STEPS, ROWS))
        dyn = options.dyn
        logits = 2 * rng.standard_normal((STEPS, ROWS, dyn.stoch * dyn.classes))
        self.post = ref.latent_log_probs(logits, dyn.stoch, dyn.classes)
        recent = options.imag_last or STEPS
        starts = State(*(x[-recent:].reshape(recent * ROWS, *x.shape[2:]) for x in self.states))
        later = self._states(rng, (options.imag_length, recent * ROWS))
        states = State(*(jnp.concatenate([a[None], b]) for a, b in zip(starts, later, strict=True)))
        lead = (options.imag_length, recent * ROWS)
        self.imagined = states
        self.rollout = Rollout(
            states.features(), {key: jnp.asarray(space.sample(rng, lead)) for key, space in act.items()}
        )

    def _states(self, rng: np.random.Generator, lead: tuple[int, ...]) -> State:
        dyn = self.options.dyn
        onehot = np.eye(dyn.classes)[rng.integers(0, dyn.classes, (*lead, dyn.stoch))]
        deter = rng.uniform(-1, 1, (*lead, dyn.deter))
        return State(jnp.asarray(deter, jnp.float32), jnp.asarray(onehot, jnp.float32))

    def compute(self) -> tuple[Any, Any]:
        """The total and the outcome of `world_loss` for these states."""
        post = jnp.asarray(self.post, jnp.float32)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world_module, "observe", lambda *args, **kwargs: (self.states, post))
            patch.setattr(world_module, "imagine", lambda *args, **kwargs: self.rollout)
            return jax.jit(
                lambda world, slow, norms, batch: world_module.world_loss(
                    world,
                    slow,
                    norms,
                    self.world.dyn.initial(ROWS, jnp.float32),
                    batch,
                    jax.random.key(0),
                    self.options,
                    FLOAT32,
                )
            )(self.world, self.slow, self.norms, self.batch)


def expected_losses(case: Case) -> dict[str, float]:
    """Mean losses by name. Moves the running statistics of the reference as an update does."""
    options, world, batch = case.options, case.world, case.batch
    parts: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        parts.setdefault(name, []).append(value)

    size = tuple(n // 2 ** len(options.enc.mults) for n in (12, 12))
    states = [ref.f64(x) for x in case.states]
    for t, b in np.ndindex(STEPS, ROWS):
        deter, stoch = (x[t, b] for x in states)
        prior = ref.prior(world.dyn, deter)
        for name in ("dyn", "rep"):
            add(name, max(1.0, ref.kl(case.post[t, b], prior)))
        features = np.concatenate([deter, stoch.reshape(-1)])
        logits = ref.linear(world.rew.out, ref.mlp(world.rew.mlp, features))
        add("rew", ref.two_hot_loss(logits, float(batch.reward[b, t])))
        logit = float(ref.linear(world.con.out, ref.mlp(world.con.mlp, features))[0])
        add("con", ref.bernoulli_loss(logit, (1 - 1 / options.horizon) * (1 - float(batch.is_terminal[b, t]))))
        obs = {key: np.asarray(value)[b, t] for key, value in batch.obs.items()}
        for key, loss in ref.reconstruction_losses(world.dec, case.obs, deter, stoch, obs, size).items():  # type: ignore[arg-type]
            add(f"rec/{key}", loss)
    _actor_and_critic(case, add)
    return {name: float(np.mean(values)) for name, values in parts.items()}


def expected_model_loss(case: Case) -> np.ndarray:
    """Of every step, time first: how far its latents and observations are from what was predicted."""
    size = tuple(n // 2 ** len(case.options.enc.mults) for n in (12, 12))
    found = np.empty((STEPS, ROWS))
    for t, b in np.ndindex(STEPS, ROWS):
        deter, stoch = (ref.f64(x)[t, b] for x in case.states)
        divergence = max(1.0, ref.kl(case.post[t, b], ref.prior(case.world.dyn, deter)))
        obs = {key: np.asarray(value)[b, t] for key, value in case.batch.obs.items()}
        decoded = ref.reconstruction_losses(case.world.dec, case.obs, deter, stoch, obs, size)  # type: ignore[arg-type]
        found[t, b] = 2 * divergence + sum(decoded.values())  # the prior towards the posterior, and the other way
    return found


def _two_hot_logits(head: Any, features: np.ndarray) -> np.ndarray:
    return ref.linear(head.out, ref.mlp(head.mlp, features))


def _actor_and_critic(case: Case, add: Any) -> None:
    options, world = case.options, case.world
    offset, scale = case.val.statistics()
    deter, stoch = (ref.f64(x) for x in case.imagined)
    length, rows = deter.shape[:2]
    features = np.concatenate([deter, stoch.reshape(length, rows, -1)], -1)
    returns, weights, values = np.empty((length - 1, rows)), np.empty((length, rows)), np.empty((length, rows))
    for n in range(rows):
        reward, cont = np.empty(length), np.empty(length)
        for t in range(length):
            reward[t] = ref.two_hot_mean(_two_hot_logits(world.rew, features[t, n]))
            values[t, n] = ref.two_hot_mean(_two_hot_logits(world.val, features[t, n])) * scale + offset
            cont[t] = ref.sigmoid(ref.linear(world.con.out, ref.mlp(world.con.mlp, features[t, n]))[0])
            weights[t, n] = np.prod(cont[: t + 1])
        returns[:, n] = ref.lambda_return(reward, values[:, n], np.zeros(length), 1 - cont, 1.0, options.imag_loss.lam)
    case.ret.update(returns)
    advantages = (returns - values[:-1]) / case.ret.statistics()[1]
    case.adv.update(advantages)
    case.val.update(returns)
    adv_offset, adv_scale = case.adv.statistics()
    offset, scale = case.val.statistics()
    for t, n in np.ndindex(length - 1, rows):
        chosen = {key: np.asarray(value)[t, n] for key, value in case.rollout.actions.items()}
        log_prob, entropy = ref.policy_log_prob_and_entropy(world.pol, case.act, features[t, n], chosen)
        advantage = (advantages[t, n] - adv_offset) / adv_scale
        add("policy", -weights[t, n] * (log_prob * advantage + 3e-4 * entropy))
        logits = _two_hot_logits(world.val, features[t, n])
        slow = ref.two_hot_mean(_two_hot_logits(case.slow, features[t, n]))
        target = (returns[t, n] - offset) / scale
        add("value", weights[t, n] * (ref.two_hot_loss(logits, target) + ref.two_hot_loss(logits, slow)))
    _replay_critic(case, returns[0], add)


def _replay_critic(case: Case, first_returns: np.ndarray, add: Any) -> None:
    options, batch = case.options, case.batch
    recent = options.imag_last or STEPS
    boot = first_returns.reshape(recent, ROWS)
    returns = []
    for b in range(ROWS):
        reward, last, term = (
            np.asarray(x, np.float64)[b, -recent:] for x in (batch.reward, batch.is_last, batch.is_terminal)
        )
        returns.append(
            ref.lambda_return(reward, boot[:, b], last, term, 1 - 1 / options.horizon, options.repl_loss.lam)
        )
    case.val.update(returns)
    offset, scale = case.val.statistics()
    for b in range(ROWS):
        last = np.asarray(batch.is_last, np.float64)[b, -recent:]
        target = (returns[b] - offset) / scale
        for t in range(recent - 1):
            deter, stoch = (ref.f64(x)[STEPS - recent + t, b] for x in case.states)
            features = np.concatenate([deter, stoch.reshape(-1)])
            logits = _two_hot_logits(case.world.val, features)
            slow = ref.two_hot_mean(_two_hot_logits(case.slow, features))
            add("repval", (1 - last[t]) * (ref.two_hot_loss(logits, target[t]) + ref.two_hot_loss(logits, slow)))


def check_losses(case: Case, *names: str) -> None:
    """Against float64, those named or all of them."""
    _, outcome = case.compute()
    expected = expected_losses(case)
    assert set(outcome.losses) == set(expected)
    for name in names or expected:
        np.testing.assert_allclose(outcome.losses[name], expected[name], rtol=2e-5, err_msg=f"the loss {name}")
    for name in ("ret", "val", "adv"):
        state, reference = getattr(outcome.norms, name), getattr(case, name)
        if reference.options.impl != "none":
            np.testing.assert_allclose(state[:2], [reference.first, reference.second], rtol=1e-5, err_msg=name)
    case.norms = outcome.norms


def check_actor_loss() -> None:
    check_losses(Case(tiny_options()), "policy")


def check_reward_loss() -> None:
    check_losses(Case(tiny_options()), "rew")


class _Reached(Exception):
    def __init__(self, batch: Batch) -> None:
        self.batch = batch


def trained_on(recipe: Recipe, data: dict[str, np.ndarray]) -> Batch:
    """What an update computes its loss from."""

    def reach(world: Any, slow: Any, norms: Any, start: Any, batch: Batch, *others: Any) -> Any:
        raise _Reached(batch)

    given = jax.tree.map(jnp.asarray, data)
    train = lively(lambda key: train_step.init_state(key, recipe))
    carry = train_step.init_carry(len(data["reward"]), recipe)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Reached) as reached:
        patch.setattr(train_step, "world_loss", reach)
        train_step.train_step(train, carry, given, jax.random.key(0), recipe)
    return reached.value.batch


def check_time_indices() -> None:
    """Step t of a window carries the number t: what was chosen at t - 1 led to the reward at t."""
    options = tiny_options()
    recipe = make_recipe(options)
    data = make_data(options, VECTOR, CHOICE, 2, 3)
    data["reward"] = np.tile(np.arange(4, dtype=np.float32), (2, 1))
    data["move"] = np.tile(np.arange(4, dtype=np.int32), (2, 1))
    data["position"] = np.tile(np.arange(4, dtype=np.float32)[:, None], (2, 1, 3))
    batch = trained_on(recipe, data)
    for b in range(2):
        assert batch.reward[b].tolist() == [1, 2, 3]
        assert batch.obs["position"][b, :, 0].tolist() == [1, 2, 3]
        assert batch.actions["move"][b].tolist() == [1, 2, 3]
        assert batch.last_actions["move"][b].tolist() == [0, 1, 2]
        for flag in ("is_first", "is_last", "is_terminal"):
            assert getattr(batch, flag)[b].tolist() == data[flag][b, 1:].tolist()


def check_reset_forgets() -> None:
    """After a first step nothing is left of the state and the action before it."""
    options = tiny_options()
    dyn = make_world(options).dyn
    rng = np.random.default_rng(0)
    tokens, actions = (jnp.asarray(rng.standard_normal((3, 2, n)), jnp.float32) for n in (8, 5))
    noise = jnp.asarray(rng.gumbel(size=(3, 2, 3, 4)), jnp.float32)
    resets = jnp.asarray([[False, False], [True, False], [False, False]])

    def run(size: float) -> Any:
        start = State(jnp.full((2, 16), size), jnp.full((2, 3, 4), size))
        given = (tokens, actions.at[1].multiply(size), resets, noise)
        return rssm_scan.observe_sequence(dyn, start, *given)

    (one, one_logits), (other, other_logits) = run(1.0), run(-0.5)
    for a, b in zip((*one, one_logits), (*other, other_logits), strict=True):
        np.testing.assert_array_equal(a[1:, 0], b[1:, 0])
    assert float(jnp.abs(one.deter[1:, 1] - other.deter[1:, 1]).max()) > 1e-3  # where there was no reset
