"""Rewards with several parts: weighed into a number, or refused with the ways to make one of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dreamfleet.core.errors import ConfigError, EnvError, SpaceMismatch
from dreamfleet.envs.builtin.dummy import Dummy
from dreamfleet.envs.inspection.inspect import Inspection
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import Made
from support.gym_fakes import Recorder

ACT = {"action": np.int32(0), "reset": np.False_}
WAYS = r"weigh its parts with env\.reward_weights=\[1, 1\], or .*env\.wrappers=\[mo_gymnasium\.wrappers:LinearReward\]"


class Treasure(Recorder):
    """Pays with two numbers, as multi-objective environments do: the treasure, and the time it took."""

    def __init__(self, declares: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if declares:
            self.reward_space = spaces.Box(-1, 10, (2,), np.float32)

    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, np.array([self.count, -1], np.float32), *others


class Rows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Vectorised, with two rewards in every row."""

    def __init__(self, declares: bool = True) -> None:
        self.num_envs = 3
        if declares:
            self.reward_space = spaces.Box(-1, 10, (2,), np.float32)
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = spaces.Discrete(2), spaces.Discrete(2)
        self.observation_space = self.action_space = spaces.MultiDiscrete([2, 2, 2])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(3, np.int64), {}

    def step(self, actions: Any) -> Any:
        ends = np.zeros(3, bool)
        return np.zeros(3, np.int64), np.arange(6.0).reshape(3, 2), ends, ends, {}


def make(env: Any, **options: Any) -> Any:
    return Made(env, "mine", EnvOptions(**options), 3).adapted()


def rewards(env: Any, steps: int) -> list[float]:
    env.step(ACT)
    return [float(env.step(ACT)["reward"]) for _ in range(steps)]


def test_weights_make_a_number_of_the_parts() -> None:
    # The parts are [1, -1], [2, -1], [3, -1].
    assert rewards(make(Treasure(), reward_weights=(0.5, 2.0)), 3) == [-1.5, -1.0, -0.5]


def test_repeats_sum_the_weighed_rewards() -> None:
    assert rewards(make(Treasure(), reward_weights=(1.0, 0.0), repeat=2), 2) == [3.0, 7.0]


def test_rows_are_weighed_each() -> None:
    env = make(Rows(), reward_weights=(10.0, 1.0))
    go = {"action": np.zeros(3, np.int32), "reset": np.zeros(3, bool)}
    env.step(go)
    assert env.step(go)["reward"].tolist() == [1, 23, 45]


def test_a_declared_reward_of_several_parts_is_refused_before_the_first_step() -> None:
    for wrapped in (Treasure(), gymnasium.wrappers.TimeLimit(Treasure(), 5)):
        with pytest.raises(EnvError, match=rf"mine: the reward has shape \(2,\) instead of being a number: {WAYS}"):
            make(wrapped)


@pytest.mark.parametrize("options", [{}, {"reward_weights": (1.0, 1.0)}])
def test_a_vectorised_environment_that_cannot_hold_them_is_refused(options: Any) -> None:
    vector = gymnasium.vector.SyncVectorEnv([Treasure] * 2)
    with pytest.raises(
        EnvError, match=r"shape \(2,\), and a SyncVectorEnv holds one .*: set env\.vector=false, or ret"
    ):
        make(vector, **options)


def test_a_wrapper_may_make_a_number_of_it() -> None:
    class Linear(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            obs, reward, *others = super().step(action)
            return obs, float(reward.sum()), *others

    assert rewards(make(gymnasium.wrappers.TimeLimit(Linear(Treasure()), 9)), 2) == [0.0, 1.0]
    assert rewards(make(gymnasium.wrappers.TransformReward(Treasure(), lambda r: r[0])), 2) == [1.0, 2.0]


@pytest.mark.parametrize(("env", "rows"), [(Treasure, None), (Rows, 3)])
def test_an_undeclared_one_is_refused_at_the_first_step(env: Any, rows: int | None) -> None:
    adapted = make(env(declares=False))
    go = ACT if rows is None else {key: np.zeros(rows, value.dtype) for key, value in ACT.items()}
    adapted.step(go)
    with pytest.raises(SpaceMismatch, match=rf"mine: the reward has shape \(2,\) instead of being a number: {WAYS}"):
        adapted.step(go)


@pytest.mark.parametrize(("env", "shape"), [(partial(Treasure, declares=False), r"\(2,\)"), (Recorder, r"\(\)")])
def test_weights_that_do_not_fit_are_refused(env: Any, shape: str) -> None:
    adapted = make(env(), reward_weights=(1.0, 2.0, 3.0))
    with pytest.raises(
        SpaceMismatch, match=rf"mine: the reward has shape {shape}, and env\.reward_weights has 3: give"
    ):
        rewards(adapted, 1)


def test_weights_that_do_not_fit_what_is_declared_are_refused_before_the_first_step() -> None:
    with pytest.raises(SpaceMismatch, match=r"the reward has shape \(2,\), and env\.reward_weights has 3"):
        make(Treasure(), reward_weights=(1.0, 2.0, 3.0))


def test_weights_have_no_place_where_there_is_one_reward() -> None:
    with pytest.raises(ConfigError, match=r"env\.reward_weights is for environments of Gymnasium, and mine has Dreamf"):
        make(Dummy(), reward_weights=(1.0,))


def test_check_env_says_the_same() -> None:
    def inspect(env: Any, **options: Any) -> Any:
        build = partial(Made, name="mine", options=EnvOptions(**options), seed=3)
        return Inspection(lambda restart: build(env()), lambda report: None, steps=20).run()

    (found,) = inspect(partial(Treasure, declares=False))["violations"]
    assert "the reward has shape (2,) instead of being a number: weigh its parts with" in found["problem"]
    for env in (Treasure, Rows):
        (found,) = inspect(env)["violations"]
        assert "env.reward_weights=[1, 1]" in found["problem"] + found["fix"]
        assert inspect(env, reward_weights=(1.0, 1.0))["ok"]
    weighed = inspect(Treasure, reward_weights=(1.0, 1.0))
    assert weighed["episodes"]["returns"]["mean"] == 10.0  # 1 + 2 + 3 + 4 + 5, and -1 five times
