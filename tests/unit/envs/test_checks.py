"""What is said when an environment does not keep to its spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import EnvError, SpaceMismatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.checks import CheckSpaces

GOOD = {
    "level": np.int32(1),
    "reward": np.float32(0),
    "is_first": np.bool_(False),
    "is_last": np.bool_(False),
    "is_terminal": np.bool_(False),
}


class Returns:
    """Returns what it is told to, whatever its spaces say."""

    def __init__(self, obs: Mapping[str, Any]) -> None:
        self.obs = obs
        self.actions: list[Mapping[str, Any]] = []
        self.closed = False
        self.obs_space = {
            "level": Space(np.int32, (), 0, 3),
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        self.act_space = {"reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        self.actions.append(action)
        return self.obs

    def close(self) -> None:
        self.closed = True


def test_passes_good_steps_through() -> None:
    inner = Returns(GOOD)
    env = CheckSpaces(inner, "mine[0]")
    assert env.step({"reset": True}) is inner.obs
    assert inner.actions == [{"reset": True}]
    env.close()
    assert inner.closed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"level": np.int32(3)}, "observation 'level' has value 3 above 2"),
        ({"level": np.int64(1)}, "observation 'level' has dtype int64 instead of int32"),
        ({"level": np.zeros(2, np.int32)}, r"observation 'level' has shape \(2,\) instead of \(\)"),
        ({"reward": np.float32("nan")}, "observation 'reward' has NaN"),
        ({"reward": 0.0}, "observation 'reward' has dtype float64 instead of float32"),
        ({"extra": np.int32(1)}, r"differ in the keys \['extra'\]"),
    ],
)
def test_a_bad_observation_is_named_with_its_environment(change: dict[str, Any], message: str) -> None:
    env = CheckSpaces(Returns({**GOOD, **change}), "mine[4]")
    with pytest.raises(SpaceMismatch, match=rf"mine\[4\]: .*{message}"):
        env.step({"reset": False})


def test_a_missing_observation_is_named() -> None:
    env = CheckSpaces(Returns({key: value for key, value in GOOD.items() if key != "is_last"}), "mine[4]")
    with pytest.raises(SpaceMismatch, match=r"differ in the keys \['is_last'\]"):
        env.step({"reset": False})


@pytest.mark.parametrize("flag", ["reward", "is_first", "is_last", "is_terminal"])
def test_spaces_without_a_flag_are_refused_at_once(flag: str) -> None:
    env = Returns(GOOD)
    del env.obs_space[flag]
    with pytest.raises(EnvError, match=rf"mine lacks \['{flag}'\] in its obs_space"):
        CheckSpaces(env, "mine")


def test_an_action_space_without_reset_is_refused_at_once() -> None:
    env = Returns(GOOD)
    env.act_space = {}
    with pytest.raises(EnvError, match="lacks 'reset' in its act_space"):
        CheckSpaces(env, "mine")


@pytest.mark.parametrize("key", ["slot", "stream", "stepid", "consec", "known"])
@pytest.mark.parametrize("space", ["obs_space", "act_space"])
def test_keys_that_the_fleet_adds_itself_are_refused_at_once(key: str, space: str) -> None:
    env = Returns(GOOD)
    setattr(env, space, {**getattr(env, space), key: Space(np.int32)})
    with pytest.raises(EnvError, match=rf"mine uses the keys \['{key}'\], which the fleet needs"):
        CheckSpaces(env, "mine")


def test_an_observation_named_like_an_action_is_refused_at_once() -> None:
    env = Returns(GOOD)
    env.act_space = {**env.act_space, "level": Space(np.int32)}
    with pytest.raises(EnvError, match=r"mine has \['level'\] in both"):
        CheckSpaces(env, "mine")
