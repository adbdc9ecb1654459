"""Reward, continue, value and policy heads."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.core.hyperparameters import PolicyOptions, RewardOptions, ValueOptions, sized
from dreamfleet.core.spaces import Space
from dreamfleet.model.heads import BinaryHead, PolicyHead, TwoHotHead, draw_noise, sample_all
from dreamfleet.model.spaces import Spaces
from support import dreamer_reference as ref
from support.tiny_dreamer import lively, tiny_options

SPACES = {
    "discrete": Spaces(move=Space(np.int32, (), 0, 5)),
    "offset": Spaces(move=Space(np.int32, (), 3, 7)),
    "multi-discrete": Spaces(keys=Space(np.int32, (3,), 0, [2, 4, 3])),
    "equal multi-discrete": Spaces(keys=Space(np.int32, (2, 2), 0, 3)),
    "bool": Spaces(fire=Space(bool)),
    "uint8": Spaces(fire=Space(np.uint8, (2,), 0, 3)),
    "continuous": Spaces(arm=Space(np.float32, (3,), -1, 1)),
    "scalar continuous": Spaces(arm=Space(np.float32, (), -1, 1)),
    "mixture": Spaces(
        turn=Space(np.int32, (), 0, 4),
        arm=Space(np.float32, (2, 2), -1, 1),
        keys=Space(np.int32, (2,), [0, 1], [3, 3]),
        fire=Space(bool),
    ),
}
FEATURES = jnp.asarray(np.random.default_rng(0).standard_normal((6, 9)), jnp.float32)


def make_policy(kind: str, **changes: float) -> PolicyHead:
    options = PolicyOptions(layers=2, units=8, outscale=1.0, **changes)
    return lively(lambda key: PolicyHead(key, 9, SPACES[kind], options))


@pytest.mark.parametrize("kind", SPACES)
def test_log_probs_and_entropies_are_summed_over_elements_and_keys(kind: str) -> None:
    spaces, policy = SPACES[kind], make_policy(kind)
    rng = np.random.default_rng(1)
    action = {key: space.sample(rng, (6,)) for key, space in spaces.items()}
    dists = policy(FEATURES)
    log_prob = sum(np.asarray(dist.log_prob(jnp.asarray(action[key]))) for key, dist in dists.items())
    entropy = sum(np.asarray(dist.entropy()) for dist in dists.values())
    rows = [
        ref.policy_log_prob_and_entropy(policy, spaces, np.asarray(FEATURES[i]), {k: v[i] for k, v in action.items()})
        for i in range(6)
    ]
    np.testing.assert_allclose(log_prob, [row[0] for row in rows], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(entropy, [row[1] for row in rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_samples_and_modes_have_the_shape_and_dtype_of_the_space(kind: str) -> None:
    spaces, dists = SPACES[kind], make_policy(kind)(FEATURES)
    for found in (
        sample_all(dists, draw_noise(spaces, jax.random.key(0), (6,))),
        {key: dist.mode() for key, dist in dists.items()},
    ):
        assert found.keys() == spaces.keys()
        for key, value in found.items():
            assert value.shape == (6, *spaces[key].shape)
            assert value.dtype == spaces[key].dtype
            if spaces[key].discrete:
                assert all(spaces[key].contains(row) for row in np.asarray(value))


def test_samples_of_unequal_elements_reach_every_class_and_no_other() -> None:
    space = Space(np.int32, (3,), [0, -2, 5], [2, 2, 8])
    policy = PolicyHead(jax.random.key(0), 4, Spaces(keys=space), PolicyOptions(layers=1, units=4))
    noise = draw_noise(policy.spaces, jax.random.key(0), (500,))
    found = np.asarray(sample_all(policy(jnp.zeros((500, 4))), noise)["keys"])
    assert [sorted(set(column.tolist())) for column in found.T] == [[0, 1], [-2, -1, 0, 1], [5, 6, 7]]


def test_gradients_of_unequal_elements_are_finite() -> None:
    for unimix in (0.0, 0.01):
        policy = make_policy("multi-discrete", unimix=unimix)
        action = jnp.asarray([[1, 3, 2]] * 6, jnp.int32)

        def loss(policy: PolicyHead, action: jax.Array = action) -> jax.Array:
            dist = policy(FEATURES)["keys"]
            return jnp.sum(dist.log_prob(action) + dist.entropy())

        assert all(np.isfinite(grad).all() for grad in jax.tree.leaves(jax.jit(jax.grad(loss))(policy)))


def test_unimix_of_the_policy_is_a_floor_under_each_choice() -> None:
    policy = make_policy("multi-discrete", unimix=0.2)
    probs = np.exp(np.asarray(policy(100 * FEATURES)["keys"].log_probs))
    for element, count in enumerate((2, 4, 3)):
        assert probs[:, element, :count].min() >= 0.2 / count * (1 - 1e-5)
        assert probs[:, element, count:].sum() == 0
        np.testing.assert_allclose(probs[:, element].sum(-1), 1, rtol=1e-5)


def test_continuous_samples_have_the_mean_and_deviation_of_the_head() -> None:
    policy = make_policy("scalar continuous")
    features = np.broadcast_to(np.asarray(FEATURES[:1]), (20_000, 9))
    dist = policy(jnp.asarray(features))["arm"]
    found = np.asarray(dist.sample(draw_noise(policy.spaces, jax.random.key(0), (20_000,))["arm"]))
    x = ref.mlp(policy.mlp, features[:1])
    mean = float(np.tanh(ref.linear(policy.heads["arm"]["mean"], x))[0, 0])
    std = float(0.9 * ref.sigmoid(ref.linear(policy.heads["arm"]["std"], x) + 2)[0, 0] + 0.1)
    assert found.mean() == pytest.approx(mean, abs=0.03)
    assert found.std() == pytest.approx(std, rel=0.03)
    assert found.max() > 1  # beyond the range of the mean


@pytest.mark.parametrize("kind", SPACES)
def test_the_first_policy_is_nearly_uniform(kind: str) -> None:
    options, spaces = sized("tiny").policy, SPACES[kind]
    dists = jax.jit(lambda key: PolicyHead(key, 64, spaces, options)(jnp.ones((16, 64))))(jax.random.key(0))
    for key, dist in dists.items():
        if not spaces[key].discrete:
            assert float(jnp.abs(dist.mean).max()) < 0.1
            assert float(dist.std.min()) == pytest.approx(0.9 * float(ref.sigmoid(np.array(2.0))) + 0.1, abs=0.02)
            continue
        most = sum(math.log(n) for n in np.broadcast_to(spaces[key].classes, spaces[key].shape).flat)
        assert float(dist.entropy().min()) >= 0.99 * most
        assert float(dist.randomness(dist.entropy()).min()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("options", [RewardOptions(), ValueOptions()], ids=["reward", "value"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_reward_and_value_are_exactly_zero_at_the_start(options: RewardOptions, dtype: jnp.dtype) -> None:
    predict = jax.jit(lambda key, x: TwoHotHead(key, 9, options)(x).mean())
    assert (np.asarray(predict(jax.random.key(0), FEATURES.astype(dtype))) == 0.0).all()


def test_heads_are_an_mlp_and_a_linear_map() -> None:
    options = tiny_options()
    head = lively(lambda key: TwoHotHead(key, 9, options.rewhead))
    expected = ref.linear(head.out, ref.mlp(head.mlp, np.asarray(FEATURES)))
    np.testing.assert_allclose(head(FEATURES).logits, expected, rtol=1e-5, atol=1e-6)
    binary = lively(lambda key: BinaryHead(key, 9, options.conhead))
    expected = ref.linear(binary.out, ref.mlp(binary.mlp, np.asarray(FEATURES)))[:, 0]
    np.testing.assert_allclose(binary(FEATURES), expected, rtol=1e-5, atol=1e-6)
