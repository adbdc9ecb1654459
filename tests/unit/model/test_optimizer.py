"""Clipping, LaProp and the learning rate against float64."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dreamfleet.agent.train_step import init_carry, init_state, train_step
from dreamfleet.core.hyperparameters import OptimizerOptions
from dreamfleet.model.optimizer import clip_by_size, learning_rate, make_optimizer
from support.tiny_dreamer import make_data, make_recipe, tiny_options


class Laprop:
    """The specification in float64, for one tensor."""

    def __init__(self, param: np.ndarray, options: OptimizerOptions) -> None:
        self.param = param.astype(np.float64)
        self.options = options
        self.square = np.zeros_like(self.param)
        self.momentum = np.zeros_like(self.param)
        self.count = 0

    def step(self, grad: np.ndarray) -> None:
        o = self.options
        most = o.agc * max(1e-3, math.sqrt((self.param**2).sum()))
        grad = grad / max(1.0, math.sqrt((grad**2).sum()) / most)
        self.square = o.beta2 * self.square + (1 - o.beta2) * grad**2
        rate = o.lr * min(1.0, self.count / o.warmup)
        self.count += 1
        scaled = grad / (np.sqrt(self.square / (1 - o.beta2**self.count)) + o.eps)
        self.momentum = o.beta1 * self.momentum + (1 - o.beta1) * scaled
        self.param = self.param - rate * self.momentum / (1 - o.beta1**self.count)


@pytest.mark.parametrize("warmup", [1000, 4])
def test_ten_steps_equal_the_float64_reference(warmup: int) -> None:
    rng = np.random.default_rng(0)
    options = OptimizerOptions(lr=0.01, warmup=warmup)
    params = {"kernel": rng.standard_normal((4, 3)), "zero": np.zeros((3, 5)), "bias": np.zeros(3)}
    expected = {key: Laprop(value, options) for key, value in params.items()}
    found: Any = {key: jnp.asarray(value, jnp.float32) for key, value in params.items()}
    optimizer = make_optimizer(options)
    state = optimizer.init(found)
    step = jax.jit(lambda grads, state, params: optimizer.update(grads, state, params))
    for i in range(10):
        # From far below the clipping bound to far above it.
        size = {"kernel": 10.0 ** (i - 5), "zero": 1e-6 * 10.0**i, "bias": 1e-2}
        grads = {key: size[key] * rng.standard_normal(value.shape) for key, value in params.items()}
        for key, grad in grads.items():
            expected[key].step(grad)
        updates, state = step({key: jnp.asarray(grad, jnp.float32) for key, grad in grads.items()}, state, found)
        found = optax.apply_updates(found, updates)
        for key in params:
            moved = expected[key].param - params[key]
            # Against how far it has come, and ten roundings of the parameter itself.
            tolerance = 3e-5 * np.abs(moved).max() + 6e-7 * np.abs(params[key]).max()
            np.testing.assert_allclose(found[key], expected[key].param, rtol=0, atol=tolerance)


def test_the_gradient_of_a_tensor_of_zeros_is_clipped_to_the_smallest_norm() -> None:
    grads = {"zero": jnp.full((4, 4), 100.0), "unit": jnp.full(4, 100.0)}
    params = {"zero": jnp.zeros((4, 4)), "unit": jnp.full(4, 0.5)}
    clipped, _ = clip_by_size(0.3).update(grads, optax.EmptyState(), params)
    assert float(jnp.linalg.norm(clipped["zero"])) == pytest.approx(0.3e-3, rel=1e-5)
    assert float(jnp.linalg.norm(clipped["unit"])) == pytest.approx(0.3, rel=1e-5)
    kept, _ = clip_by_size(0.3).update({"unit": jnp.full(4, 0.1)}, optax.EmptyState(), {"unit": jnp.full(4, 0.5)})
    assert kept["unit"].tolist() == pytest.approx([0.1] * 4)


def test_the_rate_rises_from_zero_over_the_warm_up() -> None:
    rate = learning_rate(OptimizerOptions())
    found = [float(rate(jnp.asarray(step))) for step in (0, 1, 500, 1000, 10**6)]
    assert found == pytest.approx([0, 4e-8, 2e-5, 4e-5, 4e-5], rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("linear", [0.5, 1, 0.55, 0.1, 0.1]), ("cosine", [0.5, 1, 0.1 + 0.9 * 0.5, 0.1, 0.1])],
)
def test_schedules_fall_to_a_tenth(schedule: str, expected: list[float]) -> None:
    rate = learning_rate(OptimizerOptions(lr=1.0, schedule=schedule, warmup=10, anneal=110))
    assert [float(rate(jnp.asarray(step))) for step in (5, 10, 60, 110, 1000)] == pytest.approx(expected, rel=1e-5)


def test_without_warm_up_the_first_rate_is_full() -> None:
    assert float(learning_rate(OptimizerOptions(lr=0.5, warmup=0))(jnp.asarray(0))) == 0.5


class Weights(NamedTuple):
    kernel: jax.Array
    bias: jax.Array


WEIGHTS = Weights(jnp.asarray([2.0, -4.0]), jnp.asarray([8.0]))
GRADIENTS = Weights(jnp.asarray([0.25, 0.5]), jnp.asarray([-1.0]))


def after_steps(options: OptimizerOptions, count: int) -> Any:
    """The optimizer's state."""
    optimizer = make_optimizer(options)
    state = optimizer.init(WEIGHTS)
    for _ in range(count):
        _, state = optimizer.update(GRADIENTS, state, WEIGHTS)
    return state


def test_a_resumed_run_goes_on_with_its_momentum_at_another_learning_rate() -> None:
    """Nor does the warm-up begin again."""
    before, now = (OptimizerOptions(lr=lr, warmup=4) for lr in (1e-3, 4e-3))
    state = after_steps(before, 6)
    old, new = (make_optimizer(options).update(GRADIENTS, state, WEIGHTS)[0] for options in (before, now))
    assert new.kernel.tolist() == [4 * value for value in old.kernel.tolist()]
    assert new.bias.tolist() == [4 * value for value in old.bias.tolist()]
    fresh, _ = make_optimizer(now).update(GRADIENTS, after_steps(now, 0), WEIGHTS)
    assert new.kernel.tolist() != fresh.kernel.tolist() == [0.0, 0.0]


def test_weight_decay_moves_kernels_alone_and_may_begin_when_a_run_is_resumed() -> None:
    plain, decayed = OptimizerOptions(lr=0.5, warmup=0), OptimizerOptions(lr=0.5, warmup=0, wd=0.25)
    state = after_steps(plain, 3)
    without, then = (make_optimizer(options).update(GRADIENTS, state, WEIGHTS)[0] for options in (plain, decayed))
    # 0.5 * 0.25 of each weight
    assert (without.kernel - then.kernel).tolist() == pytest.approx([0.25, -0.5], rel=1e-5)
    assert then.bias.tolist() == without.bias.tolist()


@pytest.mark.slow
def test_weight_decay_shrinks_kernels_alone() -> None:
    """With a tiny learning rate for the gradient's part, what is left of an update is the decay."""
    base = tiny_options(opt=OptimizerOptions(lr=1e-3, warmup=0))
    decayed = tiny_options(opt=OptimizerOptions(lr=1e-3, warmup=0, wd=100.0))
    found = []
    for options in (base, decayed):
        recipe = make_recipe(options)
        data = make_data(options, recipe.obs_space, recipe.act_space, 2, 3)
        data.pop("stepid")

        def step(key: jax.Array, data: Any = data, recipe: Any = recipe) -> Any:
            state = init_state(key, recipe)
            return train_step(state, init_carry(2, recipe), data, key, recipe).state.world

        found.append(jax.jit(step)(jax.random.key(0)))
    for (path, a), (_, b) in zip(*(jax.tree_util.tree_flatten_with_path(x)[0] for x in found), strict=True):
        is_kernel = getattr(path[-1], "name", "") == "kernel"
        if np.asarray(a).any():
            assert is_kernel == (float(jnp.abs(a - b).max()) > 0), jax.tree_util.keystr(path)
