"""The one loss, part by part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.core.hyperparameters import LossScales, NormalizerOptions
from dreamfleet.core.spaces import Space
from dreamfleet.model.dreamer_model import DreamerModel, Norms, world_loss
from dreamfleet.model.losses import actor_loss, continue_target, latent_losses, rollout_weights
from dreamfleet.model.normalize import NormState
from dreamfleet.model.spaces import Spaces
from support import dreamer_reference as ref
from support.dreamer_checks import Case, check_losses, expected_model_loss
from support.tiny_dreamer import CHOICE, FLOAT32, IMAGE, PUSH, VECTOR, make_batch, make_world, tiny_options

MIXED_ACTIONS = Spaces(
    turn=Space(np.int32, (), 0, 4), arm=Space(np.float32, (2,), -1, 1), keys=Space(np.int32, (2,), 0, [3, 2])
)
MIXED = Spaces(
    position=Space(np.float32, (3,)),
    count=Space(np.int32, (2,), 0, [3, 2]),
    flag=Space(bool),
    code=Space(np.uint8, (), 0, 4),
)


@pytest.mark.parametrize(
    ("obs", "act"), [(MIXED, CHOICE), (IMAGE, PUSH), (VECTOR, MIXED_ACTIONS)], ids=["mixed", "image", "actions"]
)
def test_every_loss_equals_the_float64_reference(obs: Spaces, act: Spaces) -> None:
    check_losses(Case(tiny_options(), obs, act))


@pytest.mark.parametrize("obs", [MIXED, IMAGE], ids=["mixed", "image"])
def test_the_model_loss_of_a_step_is_that_of_its_latents_and_observations_unscaled(obs: Spaces) -> None:
    case = Case(tiny_options(loss_scales=LossScales(rec=2.0, dyn=7.0, rep=0.5)), obs)
    _, outcome = case.compute()
    assert outcome.model_loss.dtype == jnp.float32
    np.testing.assert_allclose(outcome.model_loss, expected_model_loss(case), rtol=2e-5)


def test_rollouts_from_the_last_steps_only() -> None:
    check_losses(Case(tiny_options(imag_last=2)))


@pytest.mark.parametrize(("valnorm", "advnorm"), [("perc", "meanstd"), ("meanstd", "perc")])
def test_statistics_of_values_and_advantages_are_corrected_from_the_first_update_on(valnorm: str, advnorm: str) -> None:
    """Against float64: at a rate of 0.1 the averages of the first update are a tenth of what they are of."""
    norms = {"valnorm": NormalizerOptions(valnorm, rate=0.1), "advnorm": NormalizerOptions(advnorm, rate=0.1)}
    case = Case(tiny_options(**norms))
    for _ in range(3):
        check_losses(case)


def test_the_total_is_the_sum_of_scaled_losses() -> None:
    scales = LossScales(rec=2.0, rew=3.0, con=5.0, dyn=7.0, rep=0.5, policy=11.0, value=13.0, repval=0.25)
    total, outcome = Case(tiny_options(loss_scales=scales)).compute()
    losses = {name: float(value) for name, value in outcome.losses.items()}
    by_hand = (
        2 * losses["rec/position"] + 3 * losses["rew"] + 5 * losses["con"] + 7 * losses["dyn"] + 0.5 * losses["rep"]
        + 11 * losses["policy"] + 13 * losses["value"] + 0.25 * losses["repval"]
    )  # fmt: skip
    assert len(losses) == 8
    assert total.dtype == jnp.float32
    assert float(total) == pytest.approx(by_hand, rel=1e-5)
    assert {f"loss/{name}" for name in losses} <= set(outcome.metrics)


def test_real_returns_move_the_critics_statistics_after_imagined_ones() -> None:
    """Where every step is terminal, the return is the next reward and nothing else."""
    halfway = NormalizerOptions("perc", rate=0.5)
    case = Case(tiny_options(retnorm=halfway, valnorm=halfway))
    case.norms = Norms(*[NormState.zero()] * 3)
    case.batch = case.batch._replace(
        is_terminal=jnp.ones_like(case.batch.is_terminal), is_last=jnp.zeros_like(case.batch.is_last)
    )
    _, outcome = case.compute()
    rewards = ref.f64(case.batch.reward)[:, 1:]
    real = np.array([ref.percentile(rewards, percent) for percent in (5, 95)])
    expected = 0.5 * np.array(outcome.norms.ret[:2]) + 0.5 * real  # the imagined returns moved both halfway from zero
    np.testing.assert_allclose(outcome.norms.val[:2], expected, rtol=1e-5)

    offset, scale = expected[0], expected[1] - expected[0]
    losses = []
    for b, t in np.ndindex(rewards.shape):
        deter, stoch = (ref.f64(x)[t, b] for x in case.states)
        features = np.concatenate([deter, stoch.reshape(-1)])
        logits, slow = (ref.linear(head.out, ref.mlp(head.mlp, features)) for head in (case.world.val, case.slow))
        target = (rewards[b, t] - offset) / scale
        losses.append(ref.two_hot_loss(logits, target) + ref.two_hot_loss(logits, ref.two_hot_mean(slow)))
    np.testing.assert_allclose(outcome.losses["repval"], np.mean(losses), rtol=2e-5)


def test_metrics_of_the_advantage_are_those_before_it_is_scaled() -> None:
    _, plain = Case(tiny_options()).compute()
    _, scaled = Case(tiny_options(advnorm=NormalizerOptions("meanstd"))).compute()
    for name in ("adv", "adv_std", "adv_mag"):
        assert plain.metrics[name] != 0
        assert float(scaled.metrics[name]) == pytest.approx(float(plain.metrics[name]), rel=1e-6), name
    assert float(scaled.losses["policy"]) != pytest.approx(float(plain.losses["policy"]), rel=0.1)


def test_metrics_have_their_names() -> None:
    _, outcome = Case(tiny_options()).compute()
    names = ["dyn_ent", "rep_ent", "adv", "adv_std", "adv_mag", "rew", "con", "ret", "val", "tar", "weight", "slowval"]
    names += ["ret_min", "ret_max", "ret_rate"]
    assert {*names, "ent/move", "rand/move"} <= set(outcome.metrics)


def test_more_starts_than_steps_are_all_of_them() -> None:
    """A report is shorter than a training sequence; `imag_last` may be longer than it."""
    case = Case(tiny_options())
    _, expected = case.compute()
    case.options = tiny_options(imag_last=50)
    _, found = case.compute()
    assert {k: float(v) for k, v in found.losses.items()} == pytest.approx(
        {k: float(v) for k, v in expected.losses.items()}
    )


def run(options: Any, obs: Spaces = VECTOR, act: Spaces = CHOICE, dtype: Any = jnp.float32) -> Any:
    """Gradients of each loss by itself at a lively world."""
    world, batch = make_world(options, obs, act), make_batch(options, obs, act, 2, 4)
    norms = Norms(*[NormState.zero()] * 3)

    def losses(world: DreamerModel) -> dict[str, jax.Array]:
        start = world.dyn.initial(2, dtype)
        settings = FLOAT32._replace(dtype=dtype)
        args = (norms, start, batch, jax.random.key(0), options, settings)
        return world_loss(world, jax.lax.stop_gradient(world.val), *args)[1].losses

    return jax.jit(jax.jacrev(losses))(world)


def touched(grads: DreamerModel) -> set[str]:
    """The modules that a loss moves."""
    parts = ("enc", "dyn", "dec", "rew", "con", "pol", "val")
    return {name for name in parts if any(np.asarray(x).any() for x in jax.tree.leaves(getattr(grads, name)))}


def test_each_loss_reaches_the_modules_it_should() -> None:
    grads = run(tiny_options(dyn=replace(tiny_options().dyn, free_nats=0.0)))
    assert {name: touched(grad) for name, grad in grads.items()} == {
        "dyn": {"enc", "dyn"},
        "rep": {"enc", "dyn"},
        "rew": {"enc", "dyn", "rew"},
        "con": {"enc", "dyn", "con"},
        "rec/position": {"enc", "dyn", "dec"},
        "policy": {"pol"},
        "value": {"val"},
        "repval": {"enc", "dyn", "val"},
    }
    prior_moves = [
        np.asarray(x).any() for x in jax.tree.leaves((grads["rep"].dyn.prior, grads["rep"].dyn.prior_logits))
    ]
    assert not any(prior_moves), "rep stops at the prior"
    posterior_moves = np.asarray(grads["dyn"].dyn.post_logits.kernel).any()
    assert posterior_moves, "dyn reaches the posterior of earlier steps through the state"


@pytest.mark.slow
def test_switches_stop_gradients() -> None:
    grads = run(tiny_options(reward_grad=False, repval_grad=False))
    assert touched(grads["rew"]) == {"rew"}
    assert touched(grads["repval"]) == {"val"}
    grads = run(tiny_options(ac_grads=True))
    assert touched(grads["policy"]) == {"enc", "dyn", "pol"}
    assert touched(grads["value"]) == {"enc", "dyn", "val"}


@pytest.mark.slow
def test_losses_are_float32_whatever_the_compute_dtype() -> None:
    options = tiny_options()
    world, batch = make_world(options, IMAGE, PUSH), make_batch(options, IMAGE, PUSH, 2, 3)
    norms, settings = Norms(*[NormState.zero()] * 3), FLOAT32._replace(dtype=jnp.bfloat16)

    def loss(world: DreamerModel) -> tuple[jax.Array, Any]:
        start = world.dyn.initial(2, jnp.bfloat16)
        return world_loss(world, world.val, norms, start, batch, jax.random.key(0), options, settings)

    grads, outcome = jax.jit(jax.grad(loss, has_aux=True))(world)
    leaves = jax.tree.leaves((grads, outcome.losses, outcome.norms, outcome.metrics))
    assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float32)}
    assert all(np.isfinite(leaf).all() for leaf in leaves)


def test_equal_posterior_and_prior_cost_the_free_nats_and_give_no_gradient() -> None:
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.standard_normal((5, 3, 4)), jnp.float32)

    def both(post: jax.Array, prior: jax.Array) -> jax.Array:
        return jnp.stack(latent_losses(jax.nn.log_softmax(post), jax.nn.log_softmax(prior), 1.0))

    assert both(logits, logits).tolist() == [[1.0] * 5] * 2
    near = logits + 0.01
    for grad in jax.jacrev(both, (0, 1))(logits, near):
        assert not np.asarray(grad).any()


def test_each_latent_loss_moves_one_side() -> None:
    rng = np.random.default_rng(0)
    post, prior = (jax.nn.log_softmax(jnp.asarray(3 * rng.standard_normal((2, 3, 4)), jnp.float32)) for _ in range(2))
    expected = [ref.kl(np.asarray(p, np.float64), np.asarray(q, np.float64)) for p, q in zip(post, prior, strict=True)]
    assert min(expected) > 1
    for loss in latent_losses(post, prior, 1.0):
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    to_post, to_prior = (
        [
            bool(np.asarray(jax.grad(lambda p, q, i=i: latent_losses(p, q, 1.0)[i].sum(), side)(post, prior)).any())
            for i in (0, 1)
        ]
        for side in (0, 1)
    )
    assert (to_post, to_prior) == ([False, True], [True, False])


def test_free_nats_are_taken_after_the_sum_over_latents() -> None:
    """Three latents of 0.5 each are 1.5 together, which is more than one."""
    near = jnp.log(jnp.asarray([0.5, 0.5]))
    share = (1 + np.sqrt(1 - np.exp(-1.0))) / 2  # then KL(half || share) = 0.5
    far = jnp.log(jnp.asarray([share, 1 - share], jnp.float32))
    for loss in latent_losses(jnp.stack([near] * 3), jnp.stack([far] * 3), 1.0):
        assert float(loss) == pytest.approx(1.5, rel=1e-5)


def test_weights_include_the_continue_of_the_start() -> None:
    cont = jnp.asarray([[0.5], [0.8], [0.25]])
    np.testing.assert_allclose(rollout_weights(cont, 1.0)[:, 0], [0.5, 0.4, 0.1], rtol=1e-6)
    np.testing.assert_allclose(rollout_weights(cont, 0.9)[:, 0], [0.5, 0.36, 0.081], rtol=1e-6)
    assert not np.asarray(jax.grad(lambda cont: rollout_weights(cont, 1.0).sum())(cont)).any()


def test_continue_target_is_the_discount_until_the_end() -> None:
    terminal = jnp.asarray([[False, True]])
    assert continue_target(terminal, 333, True).tolist() == [[pytest.approx(332 / 333), 0.0]]
    assert continue_target(terminal, 333, False).tolist() == [[1.0, 0.0]]


def test_a_good_action_becomes_likelier() -> None:
    policy = make_world(tiny_options()).pol
    features = jnp.ones((1, 1, 28))
    action = {"move": jnp.asarray([[2]], jnp.int32)}

    def loss(policy: Any, advantage: float) -> jax.Array:
        ones = jnp.ones((1, 1))
        return actor_loss(policy(features), action, advantage * ones, ones, 0.0).sum()

    for advantage, sign in ((1.0, 1), (-1.0, -1)):
        grads = jax.grad(loss)(policy, advantage)
        moved = jax.tree.map(lambda p, g: p - 0.01 * g, policy, grads)
        gain = moved(features)["move"].log_prob(action["move"]) - policy(features)["move"].log_prob(action["move"])
        assert sign * float(gain.sum()) > 0
