"""Minigrid's views, and Gymnasium's MuJoCo tasks by their short names."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites import minigrid, mujoco


def test_the_partial_view_is_drawn_crisp_in_the_middle_of_a_black_image() -> None:
    env = minigrid.make("MiniGrid-DoorKey-6x6-v0", EnvOptions(), 0)
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    image, grid = obs["image"], env.unwrapped
    assert image.shape == (64, 64, 3)
    assert np.array_equal(image[:63, :63], grid.get_frame(tile_size=9, agent_pov=True))  # 7 cells of 9 pixels
    assert not image[63:].any() and not image[:, 63:].any()
    assert obs["direction"] == grid.agent_dir


def test_the_full_view_shows_the_whole_grid() -> None:
    env = minigrid.make("DoorKey-6x6-v0", EnvOptions(size=(96, 64)), 0, view="full")
    image = env.reset(seed=1)[0]["image"]
    assert image.shape == (96, 64, 3)
    assert np.array_equal(image[18:78, 2:62], env.unwrapped.get_frame(tile_size=10, highlight=True))


def test_the_symbolic_view_holds_the_librarys_numbers() -> None:
    env = minigrid.make("DoorKey-6x6-v0", EnvOptions(), 0, view="symbolic")
    own = gymnasium.make("MiniGrid-DoorKey-6x6-v0")
    (obs, _), (expected, _) = env.reset(seed=4), own.reset(seed=4)
    rng = np.random.default_rng(0)
    for action in rng.integers(0, 7, 50):
        assert env.observation_space.contains(obs)
        assert np.array_equal(np.stack([obs["object"], obs["color"], obs["state"]], -1), expected["image"])
        obs, expected = env.step(action)[0], own.step(action)[0]


def test_keyword_arguments_reach_the_environment() -> None:
    env = minigrid.make("Empty-5x5-v0", EnvOptions(), 0, max_steps=3, agent_view_size=5)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    assert env.unwrapped.agent_view_size == 5


@pytest.mark.parametrize(
    ("task", "kwargs", "message"),
    [
        ("Empty-5x5-v1", {}, "has no task 'Empty-5x5-v1': did you mean minigrid:.*Empty-5x5-v0"),
        ("Empty-5x5-v0", {"view": "symbols"}, "env.kwargs.view='symbols' is not one of partial, full, symbolic"),
    ],
)
def test_bad_input_is_named(task: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        minigrid.make(task, EnvOptions(), 0, **kwargs)


def test_a_grid_too_large_for_the_image_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"25 cells do not fit into an image of 48x48: set a larger env.size"):
        minigrid.make("MultiRoom-N6-v0", EnvOptions(size=(48, 48)), 0, view="full")


def test_mujoco_tasks_by_short_name_and_by_id() -> None:
    assert mujoco.make("half_cheetah", EnvOptions(), 0).spec.id == "HalfCheetah-v5"
    with pytest.warns(DeprecationWarning, match="InvertedPendulum-v4 is out of date"):
        assert mujoco.make("InvertedPendulum-v4", EnvOptions(), 0).spec.id == "InvertedPendulum-v4"
    assert {"ant", "humanoid_standup", "walker2d", "inverted_double_pendulum"} <= set(mujoco.tasks())
    assert len(mujoco.tasks()) == 11


def test_mujoco_passes_keyword_arguments_and_suggests_names() -> None:
    env = mujoco.make("hopper", EnvOptions(), 0, max_episode_steps=2, terminate_when_unhealthy=False)
    env.reset(seed=0)
    assert [env.step(np.zeros(3))[2:4] for _ in range(2)] == [(False, False), (False, True)]
    with pytest.raises(ConfigError, match="suite 'mujoco' has no task 'halfcheetah': did you mean mujoco:half_cheetah"):
        mujoco.make("halfcheetah", EnvOptions(), 0)
