"""Two-hot, categorical, Bernoulli and normal distributions."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.model.distributions import (
    TwoHot,
    bernoulli_loss,
    categorical_entropy,
    categorical_kl,
    choose,
    gumbel,
    make_bins,
    mix_uniform,
    normal_entropy,
    normal_log_prob,
    straight_through,
    symlog,
    two_hot,
)
from support import dreamer_reference as ref

RNG = np.random.default_rng(0)


def test_symlog_keeps_the_sign_and_is_undone_by_symexp() -> None:
    x = np.array([-1e6, -20.5, -1e-3, 0.0, 1e-3, 0.7, 3e4])
    found = np.asarray(symlog(jnp.asarray(x, jnp.float32)), np.float64)
    np.testing.assert_allclose(found, ref.symlog(x), rtol=1e-5)
    np.testing.assert_allclose(ref.symexp(found), x, rtol=1e-5, atol=1e-8)


def test_bins_are_symmetric_and_reach_far() -> None:
    bins = make_bins(255)
    np.testing.assert_allclose(bins, ref.bins(255), rtol=1e-5)
    assert bins[127] == 0
    assert (bins == -bins[::-1]).all()
    assert bins[-1] == pytest.approx(math.exp(20) - 1, rel=1e-5)


def test_an_even_number_of_bins_is_refused() -> None:
    with pytest.raises(ValueError, match="odd"):
        make_bins(254)


@pytest.mark.parametrize("place", [0, 1, 100, 127, 128, 253, 254])
def test_a_target_on_a_bin_is_one_hot(place: int) -> None:
    target = jnp.asarray(make_bins(255)[place])
    assert np.asarray(two_hot(target, 255)).tolist() == np.eye(255)[place].tolist()


def test_targets_between_bins_are_weighted_linearly_before_symlog() -> None:
    targets = np.array([-1e12, -4e8, -1234.5, -1.0, -0.05, 0.0, 0.01, 0.5, 3.0, 88.8, 2e7, 1e12], np.float32)
    expected = np.stack([ref.two_hot(float(t), 255) for t in targets])
    found = np.asarray(two_hot(jnp.asarray(targets), 255))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize(("target", "place"), [(1e12, 254), (-1e12, 0), (np.inf, 254), (-np.inf, 0)])
def test_targets_out_of_range_go_to_the_edge(target: float, place: int) -> None:
    assert np.asarray(two_hot(jnp.float32(target), 255)).tolist() == np.eye(255)[place].tolist()


def test_a_target_that_is_not_a_number_makes_the_loss_not_a_number() -> None:
    loss = TwoHot(jnp.zeros(255)).loss(jnp.float32(np.nan))
    assert np.isnan(float(loss))


def test_two_hot_loss_and_mean() -> None:
    logits = 2 * RNG.standard_normal((6, 21)).astype(np.float32)
    targets = np.array([-3e3, -0.7, 0.0, 0.3, 12.0, 5e5], np.float32)
    dist = TwoHot(jnp.asarray(logits))
    expected = [ref.two_hot_loss(row, float(t)) for row, t in zip(logits, targets, strict=True)]
    np.testing.assert_allclose(dist.loss(jnp.asarray(targets)), expected, rtol=1e-5)
    np.testing.assert_allclose(dist.mean(), [ref.two_hot_mean(row) for row in logits], rtol=1e-5)


def test_equal_logits_predict_exactly_zero() -> None:
    for logit in (0.0, 0.3, -7.0):
        assert float(TwoHot(jnp.full(255, logit)).mean()) == 0.0


@pytest.mark.parametrize("target", [-5e4, -0.2, 0.0, 1.7, 3e6])
def test_logits_that_minimise_the_loss_predict_the_target(target: float) -> None:
    wanted = ref.two_hot(target, 255)
    best = TwoHot(jnp.asarray(np.log(np.maximum(wanted, 1e-30)), jnp.float32))
    assert float(best.mean()) == pytest.approx(target, rel=1e-4, abs=1e-4)
    gradient = jax.grad(lambda logits: TwoHot(logits).loss(jnp.float32(target)))(best.logits)
    assert float(jnp.abs(gradient).max()) < 1e-4


def test_losses_of_bfloat16_logits_are_computed_in_float32() -> None:
    logits = jnp.asarray(RNG.standard_normal(21), jnp.bfloat16)
    dist = TwoHot(logits)
    assert dist.loss(jnp.float32(2.0)).dtype == dist.mean().dtype == jnp.float32
    assert float(dist.loss(jnp.float32(2.0))) == pytest.approx(ref.two_hot_loss(np.asarray(logits), 2.0), rel=1e-5)


def test_bernoulli_takes_soft_targets() -> None:
    logits, targets = np.array([-8.0, -0.5, 0.0, 2.0, 9.0]), np.array([0.0, 332 / 333, 0.5, 332 / 333, 1.0])
    expected = [ref.bernoulli_loss(*pair) for pair in zip(logits, targets, strict=True)]
    found = bernoulli_loss(jnp.asarray(logits, jnp.bfloat16), jnp.asarray(targets, jnp.float32))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.isfinite(bernoulli_loss(jnp.float32(-500.0), jnp.float32(1.0)))


def test_normal_log_prob_and_entropy() -> None:
    mean, std, value = 0.3, 0.25, -0.6
    expected = -((value - mean) ** 2) / (2 * std**2) - math.log(std * math.sqrt(2 * math.pi))
    assert float(normal_log_prob(*map(jnp.float32, (mean, std, value)))) == pytest.approx(expected, rel=1e-5)
    assert float(normal_entropy(jnp.float32(std))) == pytest.approx(
        0.5 * math.log(2 * math.pi * math.e * std**2), rel=1e-5
    )


def test_no_latent_is_less_likely_than_its_share_of_the_uniform_mix() -> None:
    logits = jnp.asarray([[-1e4, 0.0, 1e4, 3.0], [0.0, 0.0, 0.0, 0.0]], jnp.bfloat16)
    log_probs = mix_uniform(logits, 0.01)
    assert log_probs.dtype == jnp.float32
    probs = np.exp(np.asarray(log_probs, np.float64))
    assert (probs >= 0.01 / 4 * (1 - 1e-5)).all()
    np.testing.assert_allclose(probs, [[0.0025, 0.0025, 0.9925, 0.0025], [0.25] * 4], rtol=1e-5)


def test_kl_and_entropy_of_log_probabilities() -> None:
    post, prior = (np.log(ref.softmax(RNG.standard_normal((5, 3, 4)))) for _ in range(2))
    found = categorical_kl(jnp.asarray(post, jnp.float32), jnp.asarray(prior, jnp.float32))
    np.testing.assert_allclose(found, [ref.kl(p, q) for p, q in zip(post, prior, strict=True)], rtol=1e-5)
    np.testing.assert_allclose(
        categorical_entropy(jnp.asarray(post, jnp.float32)), -(np.exp(post) * post).sum(-1), rtol=1e-5
    )


def test_samples_follow_the_probabilities() -> None:
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    log_probs = jnp.broadcast_to(jnp.asarray(np.log(probs), jnp.float32), (20_000, 4))
    found = np.bincount(choose(log_probs, gumbel(jax.random.key(0), log_probs.shape)), minlength=4) / 20_000
    np.testing.assert_allclose(found, probs, atol=0.015)  # four deviations


def test_straight_through_has_the_value_of_the_sample_and_the_gradient_of_the_probabilities() -> None:
    onehot, weight = jnp.asarray([0.0, 1.0, 0.0]), jnp.asarray([1.0, -2.0, 0.5])
    probs = jnp.asarray([0.2, 0.3, 0.5])
    assert np.asarray(straight_through(onehot, probs)).tolist() == [0.0, 1.0, 0.0]
    grad = jax.grad(lambda probs: jnp.sum(weight * straight_through(onehot, probs)))(probs)
    assert grad.tolist() == weight.tolist()
