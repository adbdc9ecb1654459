"""Bandits: what each arm pays, with and without contexts."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.builtin.bandit import Bandit
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites.bandit import make

START = {"action": np.int32(0), "reset": np.bool_(False)}


def mean_reward(env: Bandit, arm_for: np.ndarray, episodes: int = 2000) -> float:
    """Of a policy that pulls `arm_for[context]`."""
    rewards = []
    for _ in range(episodes):
        first = env.step(START)
        assert (first["is_first"], first["is_last"], first["reward"]) == (True, False, 0)
        arm = arm_for[int(first["context"].argmax())]
        last = env.step({"action": np.int32(arm), "reset": np.bool_(False)})
        assert (last["is_first"], last["is_last"], last["is_terminal"]) == (False, True, True)
        rewards.append(float(last["reward"]))
    return float(np.mean(rewards))


@pytest.mark.parametrize(("arm", "mean"), list(enumerate([0.1, 0.3, 0.5, 0.7, 0.9])))
def test_arms_pay_their_means(arm: int, mean: float) -> None:
    env = make("default", EnvOptions(), arm)
    assert env.means[arm] == pytest.approx(mean)
    assert mean_reward(env, np.full(5, arm)) == pytest.approx(mean, abs=0.045)  # four standard errors at most


def test_the_context_names_the_best_arm() -> None:
    env = make("contextual", EnvOptions(), 0, arms=4)
    assert (env.optimum, env.chance) == (0.875, 0.5)
    assert mean_reward(env, np.arange(4)) == pytest.approx(env.optimum, abs=0.04)
    assert mean_reward(env, np.full(4, 2)) == pytest.approx(env.chance, abs=0.045)
    assert mean_reward(env, np.array([1, 2, 3, 0])) == pytest.approx(0.125, abs=0.04)  # the arm after it is the worst


def test_without_contexts_the_observation_is_constant() -> None:
    env = make("default", EnvOptions(), 0)
    contexts = {tuple(env.step(START)["context"]) for _ in range(20)}
    assert len(contexts) == 1
    assert (env.optimum, env.chance) == (0.9, pytest.approx(0.5))


def test_one_arm_is_no_choice() -> None:
    with pytest.raises(ConfigError, match=r"1 arms leaves no choice: set env.kwargs.arms to 2 or more"):
        make("default", EnvOptions(), 0, arms=1)
