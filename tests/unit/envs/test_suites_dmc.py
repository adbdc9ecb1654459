"""The control suite: states, images and ends of episodes."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
import pytest
from dm_control import mujoco, suite
from dm_env import specs
from gymnasium import spaces

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.gym.dm_env import DmEnv, from_spec
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.render import backend
from dreamfleet.envs.suites import dmc
from dreamfleet.envs.suites.dmc import make, tasks


def can_draw() -> bool:
    try:
        backend.require_renderer("this test")
    except ConfigError:
        return False
    return True


def test_states_and_rewards_are_the_librarys_own() -> None:
    own = suite.load("walker", "walk", task_kwargs={"random": 5})
    env = make("walker_walk", EnvOptions(), 5, image=False)
    obs, _ = env.reset(seed=99)
    assert {key: value.tolist() for key, value in own.reset().observation.items()} == {
        key: value.tolist() for key, value in obs.items()
    }
    rng = np.random.default_rng(0)
    for action in rng.uniform(-1, 1, (20, 6)):
        expected = own.step(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        assert env.observation_space.contains(obs)
        assert all(np.array_equal(obs[key], value) for key, value in expected.observation.items())
        assert (reward, terminated, truncated) == (expected.reward, False, False)


def test_the_time_limit_of_a_task_is_a_truncation() -> None:
    env = make("pendulum_swingup", EnvOptions(repeat=100), 0, image=False)
    env.reset()
    ends = [env.step(np.zeros(1))[2:4] for _ in range(10)]  # the limit is 1000 steps of the library
    assert ends == [(False, False)] * 9 + [(False, True)]


class Countdown:
    """Ends after three steps with the given discount; pays 1, 2, 3."""

    def __init__(self, discount: float) -> None:
        self._discount = discount
        self._count = 0

    def observation_spec(self) -> dict[str, Any]:
        return {"count": specs.BoundedArray((), np.int64, 0, 3), "pair": specs.Array((2,), np.float64)}

    def action_spec(self) -> Any:
        return specs.DiscreteArray(4)

    def reset(self) -> dm_env.TimeStep:
        self._count = 0
        return dm_env.restart(self._observe())

    def step(self, action: int) -> dm_env.TimeStep:
        self._count += 1
        if self._count < 3:
            return dm_env.transition(float(self._count), self._observe())
        return dm_env.TimeStep(dm_env.StepType.LAST, 3.0, self._discount, self._observe())

    def close(self) -> None:
        self._count = -1

    def _observe(self) -> dict[str, Any]:
        return {"count": self._count, "pair": np.zeros(2)}


@pytest.mark.parametrize(("discount", "terminated"), [(0.0, True), (1.0, False), (0.9, False)])
def test_an_end_with_discount_0_is_a_termination_and_others_truncate(discount: float, terminated: bool) -> None:
    env = DmEnv(Countdown(discount))
    assert env.reset()[0]["count"] == 0
    results = [env.step(0)[1:4] for _ in range(3)]
    assert results == [(1, False, False), (2, False, False), (3, terminated, not terminated)]


def test_repeats_sum_rewards_and_stop_at_the_end() -> None:
    env = DmEnv(Countdown(0.0), repeat=2)
    env.reset()
    assert [env.step(0)[1:4] for _ in range(2)] == [(3, False, False), (3, True, False)]


def test_specifications_become_spaces() -> None:
    assert from_spec(specs.DiscreteArray(4)) == spaces.Discrete(4)
    assert from_spec(specs.Array((2,), bool)) == spaces.MultiBinary((2,))
    assert from_spec(specs.Array((4, 4, 3), np.uint8)) == spaces.Box(0, 255, (4, 4, 3), np.uint8)
    bounded = from_spec(specs.BoundedArray((2,), np.float64, [-1, 0], 2))
    assert bounded == spaces.Box(np.array([-1.0, 0.0]), np.array([2.0, 2.0]), dtype=np.float64)
    assert from_spec(specs.Array((), np.float32)) == spaces.Box(-np.inf, np.inf, (), np.float32)


def test_images_are_drawn_in_the_size_asked_for_and_change_with_the_state() -> None:
    """Or, where no library can draw, it is said what to install."""
    options = EnvOptions(size=(48, 64), repeat=20)
    if not can_draw():
        with pytest.raises(ConfigError, match="install libegl1 or libosmesa6"):
            make("cartpole_swingup", options, 0, proprio=False)
        return
    env = make("cartpole_swingup", options, 0, proprio=False)
    assert env.observation_space == spaces.Dict({"image": spaces.Box(0, 255, (48, 64, 3), np.uint8)})
    first = env.reset()[0]["image"]
    later = env.step(np.ones(1))[0]["image"]
    assert first.shape == (48, 64, 3)
    assert first.std() > 1
    assert not np.array_equal(first, later)
    own = suite.load("quadruped", "walk", task_kwargs={"random": 0})
    own.reset()
    obs, _ = make("quadruped_walk", EnvOptions(), 0).reset()
    assert np.array_equal(obs["image"], own.physics.render(64, 64, camera_id=2)), "the library's own picture"


@pytest.mark.parametrize(
    ("task", "kwargs", "camera"),
    [("quadruped_walk", {}, 2), ("quadruped_walk", {"camera": 0}, 0), ("walker_walk", {}, 0)],
)
def test_the_camera_is_the_domains_usual_one_or_the_one_asked_for(
    task: str, kwargs: dict[str, int], camera: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(physics: Any, height: int, width: int, camera_id: int) -> np.ndarray:
        return np.full((height, width, 3), 100 + camera_id, np.uint8)

    monkeypatch.setattr(dmc, "require_renderer", lambda *args: None)
    monkeypatch.setattr(mujoco.Physics, "render", draw)
    obs, _ = make(task, EnvOptions(size=(8, 16)), 0, **kwargs).reset()
    assert obs["image"].shape == (8, 16, 3)
    assert np.unique(obs["image"]).tolist() == [100 + camera]
    assert len(obs) > 1, "states beside the image"


def test_nothing_to_observe_and_unknown_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match="both off: nothing to observe"):
        make("walker_walk", EnvOptions(), 0, proprio=False, image=False)
    with pytest.raises(ConfigError, match="did you mean dmc:ball_in_cup_catch"):
        make("ball_in_cup_cacth", EnvOptions(), 0, image=False)
    assert {"walker_walk", "ball_in_cup_catch", "quadruped_run"} <= set(tasks())
