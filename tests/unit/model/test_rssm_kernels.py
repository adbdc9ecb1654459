"""The kernels against plain steps, interpreted on the CPU in float32."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from dreamfleet.core.hyperparameters import RSSMOptions
from dreamfleet.model import rssm_scan
from dreamfleet.model.kernels.rssm import fits, make_plan
from dreamfleet.model.kernels.tiles import ScanTiling, chunk_of, depth_of
from dreamfleet.model.rssm import RSSM, State
from dreamfleet.model.rssm_scan import Inputs, observe_sequence, split_weights

ACTIONS, TOKENS = 3, 11
TILING = ScanTiling(wide=16, narrow=16, depth=32, latent_depth=32)


def make_case(options: RSSMOptions, rows: int, steps: int) -> tuple[tuple[Any, ...], tuple[Array, Array]]:
    keys = jax.random.split(jax.random.key(0), 8)
    rssm = RSSM(keys[0], options, ACTIONS, TOKENS)
    # Biases and scales that are not all alike.
    rssm = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(keys[1], x.shape) if x.ndim == 1 else x, rssm)
    classes = jax.random.randint(keys[2], (rows, options.stoch), 0, options.classes)
    start = State(
        jax.random.normal(keys[3], (rows, options.deter)),
        jax.nn.one_hot(classes, options.classes, dtype=jnp.float32),
    )
    tokens = jax.random.normal(keys[4], (steps, rows, TOKENS))
    actions = jax.random.normal(keys[5], (steps, rows, ACTIONS))
    resets = jax.random.bernoulli(keys[6], 0.3, (steps, rows))
    noise = jax.random.gumbel(keys[7], (steps, rows, options.stoch, options.classes))
    return (rssm, start, tokens, actions), (resets, noise)


def outcome(observe: Any, given: tuple[Any, ...], fixed: tuple[Array, Array]) -> tuple[Any, Any]:
    """Gradients of a function of all outputs, and the outputs."""

    def loss(given: tuple[Any, ...]) -> tuple[Array, Any]:
        states, log_probs = observe(*given, *fixed)
        outputs = (states.deter, states.stoch, log_probs)
        parts = [jnp.sum(x * jnp.cos(jnp.arange(x.size, dtype=jnp.float32).reshape(x.shape))) for x in outputs]
        return jnp.sum(jnp.stack(parts)), outputs

    return jax.jit(jax.grad(loss, has_aux=True))(given)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("options", "rows"),
    [
        pytest.param(RSSMOptions(deter=64, hidden=32, classes=16, stoch=2, blocks=2), 16, marks=pytest.mark.slow),
        (RSSMOptions(deter=96, hidden=48, classes=6, stoch=3, blocks=2), 5),
        pytest.param(
            RSSMOptions(deter=64, hidden=16, classes=4, stoch=2, blocks=4, unimix=0.0), 40, marks=pytest.mark.slow
        ),
    ],
    ids=["tiles_fit", "odd_sizes_and_few_rows", "many_rows_without_unimix"],
)
def test_outputs_and_gradients_are_those_of_plain_steps(
    options: RSSMOptions, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, fixed = make_case(options, rows, steps=3)
    monkeypatch.setattr(rssm_scan, "make_plan", partial(make_plan, tiling=TILING, interpret=True))
    monkeypatch.setattr(rssm_scan, "use_kernels", lambda plan: True)
    grads, outputs = outcome(partial(observe_sequence, kernels=True), given, fixed)
    plain_grads, plain_outputs = outcome(rssm_scan._observe_plain, given, fixed)
    for one, other in zip(jax.tree.leaves(outputs), jax.tree.leaves(plain_outputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    for one, other in zip(jax.tree.leaves(grads), jax.tree.leaves(plain_grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * float(jnp.abs(other).max() + 1))


def test_without_a_gpu_the_scan_takes_over() -> None:
    options = RSSMOptions(deter=128, hidden=32, classes=16, stoch=2, blocks=2)
    given, fixed = make_case(options, rows=2, steps=2)
    states, _ = observe_sequence(*given, *fixed, kernels=True)
    plain, _ = observe_sequence(*given, *fixed)
    np.testing.assert_array_equal(states.deter, plain.deter)


def test_sizes_below_a_matrix_instruction_do_not_fit() -> None:
    assert fits(plan_of(RSSMOptions(deter=512, hidden=64, classes=4)))
    assert fits(plan_of(RSSMOptions(deter=3072, hidden=384, classes=24)))
    assert not fits(plan_of(RSSMOptions(deter=192, hidden=48, classes=6)))


def plan_of(options: RSSMOptions) -> Any:
    rssm = jax.eval_shape(lambda: RSSM(jax.random.key(0), options, ACTIONS, TOKENS))
    weights = jax.eval_shape(split_weights, rssm)
    shapes = (options.deter, options.hidden, 1)
    inputs = [jax.ShapeDtypeStruct((4, 16, size), jnp.bfloat16) for size in shapes]
    noise = jax.ShapeDtypeStruct((4, 16, options.stoch, options.classes), jnp.float32)
    return make_plan(weights, Inputs(*inputs, noise), options.classes, options.unimix)  # type: ignore[arg-type]


def test_a_chunk_is_a_power_of_two_that_divides() -> None:
    assert [chunk_of(size, 128) for size in (384, 2048, 48, 6, 7)] == [128, 128, 16, 2, 1]


def test_a_part_divides_evenly() -> None:
    assert [depth_of(size, 512) for size in (2048, 3072, 768, 100)] == [512, 512, 384, 100]
