"""Crafter against its own library, and its ends, logs and seeds."""

from __future__ import annotations

from typing import Any

import crafter
import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites.crafter import Crafter, make


def run(env: Crafter, steps: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [env.step({"action": np.int32(rng.integers(17)), "reset": np.bool_(False)}) for _ in range(steps)]


def test_an_episode_begins_as_the_librarys_own_does() -> None:
    own = crafter.Env(seed=3)
    first = make("reward", EnvOptions(), 3).step({"action": np.int32(0), "reset": np.bool_(False)})
    assert np.array_equal(first["image"], own.reset())
    assert first["image"].shape == (64, 64, 3)


def test_one_seed_gives_one_game_wherever_its_objects_lie_in_memory() -> None:
    one, same = make("reward", EnvOptions(), 7), make("reward", EnvOptions(), 7)
    for mine, other in zip(run(one, 150), run(same, 150), strict=True):
        assert np.array_equal(mine["image"], other["image"])


def test_the_length_truncates_and_dying_terminates() -> None:
    flags = [
        (bool(obs["is_last"]), bool(obs["is_terminal"])) for obs in run(make("reward", EnvOptions(), 0, length=5), 6)
    ]
    assert flags == [(False, False)] * 5 + [(True, False)]
    env = make("reward", EnvOptions(), 0)
    run(env, 3)
    env._env._player.health = 0
    last = env.step({"action": np.int32(0), "reset": np.bool_(False)})
    assert (last["is_last"], last["is_terminal"]) == (True, True)
    assert env.step({"action": np.int32(0), "reset": np.bool_(False)})["is_first"]


def test_rewards_are_the_games_own_or_none() -> None:
    rewards, nothing = (
        [float(obs["reward"]) for obs in run(make(task, EnvOptions(), 1), 60)] for task in ("reward", "noreward")
    )
    assert any(rewards)
    assert not any(nothing)


def test_logs_count_what_was_achieved_and_carried() -> None:
    env = make("reward", EnvOptions(), 1, logs=True)
    observations = run(env, 60)
    assert not any(obs["is_last"] for obs in observations)
    for obs in observations:
        assert {key: space.violation(obs[key]) for key, space in env.obs_space.items()} == dict.fromkeys(obs)
    sums = {key: sum(float(obs[key]) for obs in observations) for key in env.obs_space if "/achievement/" in key}
    assert len(sums) == 22
    assert {key.rpartition("/")[2]: total for key, total in sums.items()} == env._env._player.achievements
    assert sum(total > 0 for total in sums.values()) >= 1
    assert float(observations[-1]["log/inventory/health"]) == env._env._player.inventory["health"]


def test_the_size_comes_from_the_options() -> None:
    env = make("reward", EnvOptions(size=(80, 96)), 0)
    assert run(env, 1)[0]["image"].shape == env.obs_space["image"].shape == (80, 96, 3)


def test_a_task_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="suite 'crafter' has no task 'rewards': did you mean crafter:reward"):
        make("rewards", EnvOptions(), 0)
