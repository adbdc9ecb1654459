"""Observations of environments of our own interface that are left out or clipped, one at a time and in rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError, SpaceMismatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.adapter import adapt
from dreamfleet.envs.builtin.dummy import Dummy
from dreamfleet.envs.checks import CheckBatch, CheckSpaces
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import Made, make_env

FLAG_SPACES = {"reward": Space(np.float32), **{f"is_{flag}": Space(bool) for flag in ("first", "last", "terminal")}}
X, N, D = Space(np.float32, (2,), 0, 1), Space(np.int32, (), 2, 5), Space(np.float64, (), -1, 1)
OUTSIDE = {"arm/x": np.float32([-3, 0.5]), "arm/n": np.int32(5), "d": np.float64(1.5), "log/z": np.float32(9)}
INSIDE = {"arm/x": [0, 0.5], "arm/n": 4, "d": 1}


class Own:
    """Its values are out of bounds."""

    obs_space = {"arm/x": X, "arm/n": N, "d": D, "log/z": Space(np.float32, (), 0, 1), **FLAG_SPACES}  # noqa: RUF012
    act_space = {"action": Space(np.int32, (), 0, 2), "reset": Space(bool)}  # noqa: RUF012

    def step(self, action: Any) -> dict[str, Any]:
        first = bool(action["reset"])
        return {**OUTSIDE, "reward": np.float32(7), "is_first": first, "is_last": False, "is_terminal": False}

    def close(self) -> None:
        pass


class OwnRows(Own):
    num_envs = 2

    def step(self, actions: Any) -> dict[str, Any]:
        alone = super().step({"reset": False})
        return {key: np.stack([value] * 2) for key, value in alone.items()}

    def begun(self) -> np.ndarray:
        return np.ones(2, bool)

    def first(self) -> dict[str, Any]:
        return self.step({})


def make(env: Any, **options: Any) -> Any:
    return Made(env, "mine", EnvOptions(**options), 0).adapted()


def seen(env: Any) -> set[str]:
    return env.obs_space.keys() - FLAG_SPACES


GO = {"action": np.int32(0), "reset": np.True_}
ROWS = {"action": np.zeros(2, np.int32), "reset": np.ones(2, bool)}


@pytest.mark.parametrize("drop", [("arm",), ("arm/*",), ("arm/x", "arm/n")])
def test_observations_are_dropped_by_name_group_and_glob(drop: Any) -> None:
    env, rows = make(Own(), drop=drop), make(OwnRows(), drop=drop)
    assert seen(env) == seen(rows) == {"d", "log/z"}
    for step in (rows.step(ROWS), rows.first()):
        assert "arm/x" not in step


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        (("arm/y",), "env.drop: 'arm/y' matches no observation of mine: did you mean 'arm/"),
        (("reward",), "env.drop: 'reward' matches no observation of mine: there are arm/n, arm/x, d"),
        (("log/z",), "env.drop: 'log/z' matches no observation of mine: there are"),
        (("*",), r"env.drop=\['\*'\] leaves no observation of mine: keep one of them"),
    ],
)
def test_patterns_that_match_nothing_or_everything_are_refused(drop: Any, message: str) -> None:
    for env in (Own(), OwnRows()):
        with pytest.raises(ConfigError, match=message):
            make(env, drop=drop)


def test_values_are_clipped_before_they_are_converted() -> None:
    step = make(Own(), clip=True).step(GO)
    assert {key: np.asarray(step[key]).tolist() for key in INSIDE} == INSIDE
    assert step["reward"] == 7
    rows = make(OwnRows(), clip=True)
    for step in (rows.step(ROWS), rows.first()):
        assert {key: np.asarray(step[key][1]).tolist() for key in INSIDE} == INSIDE


@pytest.mark.parametrize(("env", "check", "go"), [(Own, CheckSpaces, GO), (OwnRows, CheckBatch, ROWS)])
def test_without_it_the_message_names_it(env: Any, check: Any, go: Any) -> None:
    checked = check(make(env(), drop=("d",)), "mine")
    with pytest.raises(
        SpaceMismatch, match=r"'arm/x' has value -3.0 at \[0\] below 0.0.*, or set env.clip=true to clip it into"
    ):
        checked.step(go)


def test_a_value_that_a_conversion_would_hide_names_it_too() -> None:
    with pytest.raises(SpaceMismatch, match=r"'d' has value 1.5 above 1.0: return .*, or set env.clip=true"):
        make(Own()).step(GO)


@pytest.mark.parametrize(("key", "value"), [("text", {"d": 8}), ("pad", {"d": 8}), ("reward_weights", (1.0,))])
def test_what_only_gymnasium_has_is_refused(key: str, value: Any) -> None:
    for env in (Own(), OwnRows()):
        with pytest.raises(ConfigError, match=f"env.{key} is for environments of Gymnasium, and mine has Dreamfleet's"):
            make(env, **{key: value})


def test_options_reach_a_suite_with_our_own_interface() -> None:
    env = make_env("dummy", 0, 0, {}, options=EnvOptions(drop=("image",), repeat=2, size=(64, 64)))
    assert seen(env) == seen(Dummy()) - {"image"}


def test_an_environment_that_is_left_as_it_is_is_not_wrapped() -> None:
    env = Dummy(size=4)
    assert make(env) is env
    assert adapt(env, "mine", EnvOptions(), 0, []) is env
