"""What every environment keeps to, whichever suite it comes from (the contract of `core.interfaces.Env`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.interfaces import Env
from dreamfleet.core.spaces import Space
from dreamfleet.envs.registry import make_env

ENVS: dict[str, dict[str, Any]] = {"dummy": {"length": 7, "size": 8}, "dreamfleet.envs.dummy:Dummy": {"length": 1}}


@pytest.fixture(params=ENVS)
def env(request: pytest.FixtureRequest) -> Iterator[Env]:
    built = make_env(request.param, 0, 0, ENVS[request.param])
    yield built
    built.close()


def random_action(env: Env, rng: np.random.Generator, reset: bool = False) -> dict[str, Any]:
    actions = {key: space.sample(rng) for key, space in env.act_space.items() if key != "reset"}
    return {**actions, "reset": np.bool_(reset)}


def test_declares_flags_and_reset(env: Env) -> None:
    assert isinstance(env, Env)
    assert env.obs_space["reward"] == Space(np.float32)
    for flag in ("is_first", "is_last", "is_terminal"):
        assert env.obs_space[flag] == Space(bool)
    assert env.act_space["reset"] == Space(bool)


def test_every_observation_is_in_its_space(env: Env) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        obs = env.step(random_action(env, rng, rng.random() < 0.1))
        assert obs.keys() == env.obs_space.keys()
        for key, space in env.obs_space.items():
            assert space.violation(obs[key]) is None, key


def test_an_episode_begins_at_the_start_after_a_last_step_and_on_reset_and_nowhere_else(env: Env) -> None:
    rng = np.random.default_rng(1)
    ended = True
    for _ in range(100):
        reset = bool(rng.random() < 0.1)
        obs = env.step(random_action(env, rng, reset))
        assert obs["is_first"] == (reset or ended)
        if obs["is_first"]:
            assert obs["reward"] == 0
            assert not obs["is_last"]
        ended = bool(obs["is_last"])


def test_a_terminal_step_is_a_last_step(env: Env) -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        obs = env.step(random_action(env, rng))
        assert obs["is_last"] or not obs["is_terminal"]
