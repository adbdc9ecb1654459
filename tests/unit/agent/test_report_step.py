"""What the agent shows of itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.agent.dreamer import DreamerAgent
from dreamfleet.agent.report_step import make_video, report_step
from dreamfleet.agent.train_step import LossScale, TrainState, init_carry
from dreamfleet.core.spaces import Space
from dreamfleet.model.dreamer_model import Norms
from dreamfleet.model.normalize import NormState
from dreamfleet.model.spaces import Spaces
from support.tiny_dreamer import CHOICE, IMAGE, VECTOR, make_data, make_recipe, make_world, tiny_options

GREEN, RED = [0, 255, 0], [255, 0, 0]


def test_a_video_shows_truth_prediction_and_error_in_columns() -> None:
    truth = np.full((2, 4, 6, 8, 3), 100, np.uint8)
    predicted = np.full((2, 4, 6, 8, 3), 0.4)  # 102
    predicted[1] = 1.0
    video = make_video(truth, predicted)
    assert video.shape == (4 + 10, 3 * (6 + 4), 2 * (8 + 4), 3)
    assert video.dtype == np.uint8
    assert not video[4:].any(), "black at the end"
    for t, colour in ((0, GREEN), (1, GREEN), (2, RED), (3, RED)):
        for place in ((0, 0), (1, 5), (9, 23), (5, 11), (5, 12), (29, 0), (10, 0)):
            assert video[t][place].tolist() == colour, (t, place)
        assert video[t, 5, 5].tolist() == [100] * 3
        assert video[t, 15, 5].tolist() == [102] * 3
        assert video[t, 25, 5].tolist() == [128] * 3  # (102 - 100 + 255) / 2 = 128.5
        assert video[t, 15, 17].tolist() == [255] * 3
        assert video[t, 25, 17].tolist() == [205] * 3  # (255 - 100 + 255) / 2


def test_grey_images_become_colour() -> None:
    video = make_video(np.full((1, 2, 6, 6, 1), 7, np.uint8), np.zeros((1, 2, 6, 6, 1)))
    assert video[0, 4, 4].tolist() == [7] * 3


def make_state(options: Any, obs: Spaces) -> TrainState:
    world = make_world(options, obs, CHOICE)
    norms = Norms(NormState(jnp.float32(-1.0), jnp.float32(2.0)), NormState.zero(), NormState.zero())
    return TrainState(
        world, make_world(options, obs, CHOICE, seed=1).val, norms, (), LossScale.initial(jnp.float32), jnp.int32(3)
    )


def report(options: Any, obs: Spaces, rows: int = 7) -> tuple[TrainState, Any, Any, Any, Any]:
    recipe, state = make_recipe(options, obs), make_state(options, obs)
    data = make_data(options, obs, CHOICE, rows, 4)
    data.pop("stepid")
    step = jax.jit(lambda state, data: report_step(state, init_carry(rows, recipe), data, jax.random.key(0), recipe))
    return state, data, *step(state, data)


def test_predictions_are_of_at_most_six_sequences_and_every_step() -> None:
    spaces = Spaces(front=IMAGE["image"], position=VECTOR["position"], back=Space(np.uint8, (12, 12, 1)))
    _, _, _, metrics, predicted = report(tiny_options(), spaces)
    assert {key: value.shape for key, value in predicted.items()} == {
        "front": (6, 4, 12, 12, 3),
        "back": (6, 4, 12, 12, 1),
    }
    assert all(float(value.min()) >= 0 and float(value.max()) <= 1 for value in predicted.values())
    names = ("dyn", "rep", "rew", "con", "policy", "value", "repval", "rec/front", "rec/back", "rec/position")
    assert {f"loss/{name}" for name in names} <= set(metrics)
    assert not any(name.startswith("gradnorm/") for name in metrics)


@pytest.mark.slow
def test_gradient_norms_come_when_asked_for() -> None:
    _, _, _, metrics, predicted = report(tiny_options(report_gradnorms=True), VECTOR, 2)
    assert predicted == {}
    for name in ("dyn", "rep", "rew", "con", "policy", "value", "repval", "rec/position"):
        assert np.isfinite(float(metrics[f"gradnorm/{name}"]))
    assert float(metrics["gradnorm/rew"]) > 0


def test_a_report_reads_the_running_statistics_without_moving_them() -> None:
    """The advantage is scaled by the stored range, whatever the returns of this batch are."""
    options = tiny_options()
    state, recipe = make_state(options, VECTOR), make_recipe(options)
    data = make_data(options, VECTOR, CHOICE, 2, 4)
    data.pop("stepid")

    @jax.jit
    def run(most: jax.Array) -> Any:
        norms = state.norms._replace(ret=NormState(jnp.float32(0.0), most))
        train = TrainState(state.world, state.slow, norms, (), state.loss_scale, state.updates)
        return report_step(train, init_carry(2, recipe), data, jax.random.key(0), recipe)[1]["adv_mag"]

    narrow, wide = float(run(jnp.float32(1.0))), float(run(jnp.float32(1000.0)))
    assert narrow == pytest.approx(1000 * wide, rel=1e-4)


def test_the_compiled_report_returns_losses_and_keeps_the_parameters(agent: DreamerAgent) -> None:
    before = agent.save()
    batch = make_data(tiny_options(), VECTOR, CHOICE, 2, 4)
    carry, metrics = agent.report(agent.init_report(2), batch)
    assert isinstance(metrics["loss/rew"], float)
    assert carry.state.deter.shape == (2, 16)
    for key, value in agent.save().items():
        np.testing.assert_array_equal(value, before[key])
