"""Procgen and Memory Maze against stand-ins of their libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites import memory_maze, procgen
from support.fake_suites import ProcgenGym3Env, install

MEMORY_MAZE = """
import dm_env
import numpy as np
from dm_env import specs

def memory_maze_9x9(**kwargs):
    return Maze(**kwargs)

class Maze:
    def __init__(self, image_only_obs, camera_resolution, seed, **kwargs):
        self.seed, self.kwargs = seed, kwargs
        self._shape = (camera_resolution, camera_resolution, 3)
        self._only = image_only_obs

    def observation_spec(self):
        image = specs.BoundedArray(self._shape, np.uint8, 0, 255)
        return image if self._only else {"image": image, "target_color": specs.Array((3,), np.float64)}

    def action_spec(self):
        return specs.DiscreteArray(6)

    def reset(self):
        return dm_env.restart(self._observe())

    def step(self, action):
        return dm_env.truncation(1.0, self._observe())

    def _observe(self):
        image = np.zeros(self._shape, np.uint8)
        return image if self._only else {"image": image, "target_color": np.zeros(3)}
"""


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, procgen={"ProcgenGym3Env": ProcgenGym3Env})


def act(env: procgen.Procgen, action: int, reset: bool = False) -> tuple[Any, ...]:
    obs = env.step({"action": np.int32(action), "reset": np.bool_(reset)})
    assert {key: space.violation(obs[key]) for key, space in env.obs_space.items()} == dict.fromkeys(obs)
    flags = "".join(
        letter for letter, key in zip("flt", ("is_first", "is_last", "is_terminal"), strict=True) if obs[key]
    )
    return int(obs["image"][0, 0, 0]), float(obs["reward"]), flags


@pytest.mark.parametrize("size", [None, (64, 64)])
def test_a_completed_level_terminates_and_its_last_step_repeats_the_image(size: tuple[int, int] | None) -> None:
    env = procgen.make("coinrun", EnvOptions(size=size), 2**32 - 1)
    assert env.obs_space["image"].shape == (*(size or (96, 96)), 3)
    steps = [act(env, action) for action in (0, 1, 2, 7, 7, 7)]
    assert steps == [(0, 0, "f"), (10, 0, ""), (20, 0, ""), (20, 10, "lt"), (0, 0, "f"), (0, 10, "lt")]


def test_the_time_limit_truncates_unless_the_level_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(procgen.TIMEOUTS, "maze", 5)
    env = procgen.make("maze", EnvOptions(), 0)
    assert [act(env, 0)[2] for _ in range(6)] == ["f", "", "", "", "", "l"]
    assert [act(env, action)[2] for action in (0, 0, 0, 0, 0, 7)] == ["f", "", "", "", "", "lt"]


def test_dying_before_the_time_limit_terminates() -> None:
    env = procgen.make("coinrun", EnvOptions(), 0)  # whose limit is 1000 steps
    assert [act(env, 0)[2] for _ in range(7)] == ["f", "", "", "", "", "lt", "f"]


def test_reset_begins_the_next_level_at_any_time() -> None:
    env = procgen.make("coinrun", EnvOptions(), 0)
    assert act(env, 0, reset=True) == (0, 0, "f")
    assert [act(env, 0)[0] for _ in range(2)] == [10, 20]
    assert act(env, 3, reset=True) == (0, 0, "f")
    assert act(env, 0) == (10, 0, "")


def test_keyword_arguments_reach_the_library_and_names_are_suggested() -> None:
    env = procgen.make("coinrun", EnvOptions(), 0, distribution_mode="easy", num_levels=200)
    assert env._env.kwargs == {"distribution_mode": "easy", "num_levels": 200}
    with pytest.raises(ConfigError, match="suite 'procgen' has no task 'coin_run': did you mean procgen:coinrun"):
        procgen.make("coin_run", EnvOptions(), 0)
    assert len(procgen.tasks()) == 16


@pytest.fixture
def maze_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the real one, whose package cannot be imported without the old gym."""
    package = tmp_path / "memory_maze"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('No module named gym')")
    (package / "tasks.py").write_text(MEMORY_MAZE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    for name in ("memory_maze", "memory_maze.tasks"):
        monkeypatch.setitem(sys.modules, name, None)  # so that what the test imports is forgotten after it
        del sys.modules[name]


@pytest.mark.usefixtures("maze_library")
def test_memory_maze_is_built_without_the_old_gym() -> None:
    env = memory_maze.make("9x9", EnvOptions(), 2**32 - 1, show_path=True)
    assert (env._env.seed, env._env.kwargs) == (2**32 - 1, {"show_path": True})
    assert env.observation_space.shape == (64, 64, 3)
    assert env.action_space.n == 6
    assert env.observation_space.contains(env.reset()[0])
    assert env.step(0)[1:4] == (1.0, False, True)


@pytest.mark.usefixtures("maze_library")
def test_memory_maze_takes_a_size_and_further_observations() -> None:
    env = memory_maze.make("9x9", EnvOptions(size=(96, 96)), 0, image_only_obs=False)
    assert set(env.reset()[0]) == {"image", "target_color"}
    assert env.observation_space["image"].shape == (96, 96, 3)
    with pytest.raises(ConfigError, match=r"draws squares: set env.size to two equal numbers, not 64x96"):
        memory_maze.make("9x9", EnvOptions(size=(64, 96)), 0)
    with pytest.raises(ConfigError, match="suite 'memory_maze' has no task '10x10'"):
        memory_maze.make("10x10", EnvOptions(), 0)
