"""What is said when an environment does not keep to its spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import EnvError, SpaceMismatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.checks import CheckBatch, CheckSpaces, Problem

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
        ({"extra": np.int32(1)}, r"has \['extra'\] besides: declare them"),
    ],
)
def test_a_bad_observation_is_named_with_its_environment(change: dict[str, Any], message: str) -> None:
    env = CheckSpaces(Returns({**GOOD, **change}), "mine[4]")
    with pytest.raises(SpaceMismatch, match=rf"mine\[4\]: .*{message}"):
        env.step({"reset": False})


def test_a_missing_observation_is_named() -> None:
    env = CheckSpaces(Returns({key: value for key, value in GOOD.items() if key != "is_last"}), "mine[4]")
    with pytest.raises(SpaceMismatch, match=r"has no \['is_last'\]: return every key"):
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


@pytest.mark.parametrize("key", ["slot", "stream", "is_eval", "stepid", "consec", "known", "run_step", "run_epoch"])
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


def test_scalars_below_log_need_no_declaration_and_come_and_go() -> None:
    for value in (1.5, 2, True, np.float64(1), np.array(3), float("nan")):
        assert CheckSpaces(Returns({**GOOD, "log/x": value}), "mine").step({})["log/x"] is value


@pytest.mark.parametrize("value", [np.zeros(3), "text", None, [1, 2]])
def test_anything_else_below_log_is_refused(value: Any) -> None:
    with pytest.raises(SpaceMismatch, match=r"mine: 'log/x' has shape .* must be a number"):
        CheckSpaces(Returns({**GOOD, "log/x": value}), "mine").step({})


def test_a_declared_log_must_be_there() -> None:
    env = Returns({**GOOD, "log/other": 1.0})
    env.obs_space["log/x"] = Space(np.float32)
    with pytest.raises(SpaceMismatch, match=r"has no \['log/x'\]: return every key"):
        CheckSpaces(env, "mine").step({})


SPACES = {
    "bool": Space(bool),
    "bools": Space(bool, (3,)),
    "bytes": Space(np.uint8, (2, 3)),
    "few bytes": Space(np.uint8, (2,), 0, 200),
    "int": Space(np.int32),
    "choice": Space(np.int32, (), -2, 5),
    "choices": Space(np.int32, (2,), [0, 3], [2, 9]),
    "float": Space(np.float32),
    "bounded": Space(np.float32, (), -1, 1),
    "vector": Space(np.float32, (3,)),
    "matrix": Space(np.float32, (2, 2)),
    "half": Space(np.float32, (2,), [0, -np.inf], [np.inf, 1]),
    "double": Space(np.float64, (2,), -1, 1),
}
VALUES: list[Any] = [
    *(True, 1, 0.5, None, "x", [1.0, 2.0], np.True_, np.uint8(201), float("nan")),
    *(np.int32(-3), np.int32(-2), np.int32(4), np.int32(5), np.int64(1), np.float64(0.5)),
    *(np.float32(x) for x in (0.5, 1, 1.0000001, -1.5, np.inf, -np.inf, np.nan)),
    *(np.array(x, np.int32) for x in ([0, 3], [1, 8], [2, 3], [0, 2], 3)),
    *(np.array(x, np.uint8) for x in ([0, 199], [0, 200], [[0, 1, 255], [9, 9, 9]])),
    *(np.array(x, np.float32) for x in ([0, 1], [-1, 0], [0, np.inf], [np.inf, -np.inf], [0, np.nan], 0.5, np.nan)),
    *(np.array(x, np.float32) for x in ([1, 2, 3], [np.inf, -np.inf, 0], [3e38, 3e38, 3e38], [1, np.nan, np.inf])),
    *(np.array(x, np.float32) for x in ([[1, 2], [3, 4]], [[1, 2], [np.nan, 4]])),
    *(np.array(x, np.float64) for x in ([0.5, 1], [0.5, 1.0000001], [np.nan, 0])),
    *(np.array([True, False, True]), np.array(True), np.zeros((2, 4, 2), np.float32)[:, ::2, 0]),
]


@pytest.mark.parametrize("kind", SPACES)
def test_the_check_agrees_with_the_space_on_every_value(kind: str) -> None:
    env = Returns(GOOD)
    env.obs_space["x"] = SPACES[kind]
    check = CheckSpaces(env, "mine")
    accepted = 0
    for value in VALUES:
        env.obs = {**GOOD, "x": value}
        try:
            check.step({})
            found = True
        except SpaceMismatch:
            found = False
        assert found == SPACES[kind].contains(value), value
        accepted += found
    assert 0 < accepted < len(VALUES)


class Rows(Returns):
    """Two rows that return what they are told to."""

    num_envs = 2

    def __init__(self, **change: Any) -> None:
        super().__init__({**{key: np.stack([value, value]) for key, value in GOOD.items()}, **change})
        self.held: Mapping[str, Any] = self.obs
        self.rows: Any = np.array([False, True])

    def begun(self) -> Any:
        return self.rows

    def first(self) -> Any:
        return self.held


def test_good_rows_pass() -> None:
    inner = Rows(**{"log/x": np.array([1.0, np.nan])})
    env = CheckBatch(inner, "mine")
    assert env.step({}) is inner.obs
    assert env.first() is inner.held
    assert env.num_envs == 2
    env.close()
    assert inner.closed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"level": np.array([0, 3], np.int32)}, "observation 'level' has value 3 above 2 in row 1"),
        ({"level": np.int32(0)}, r"observation 'level' has shape \(\) instead of \(2,\), one row per environment"),
        ({"level": np.zeros(3, np.int32)}, r"shape \(3,\) instead of \(2,\)"),
        ({"level": np.zeros(2)}, "dtype float64 instead of int32 in row 0"),
        ({"reward": np.array([0, np.nan], np.float32)}, "observation 'reward' has NaN in row 1"),
        ({"log/x": np.float32(1)}, "'log/x' has shape .* must be 2 numbers"),
    ],
)
def test_a_bad_row_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpaceMismatch, match=rf"mine: .*{message}"):
        CheckBatch(Rows(**change), "mine").step({})


def test_first_observations_count_only_where_an_episode_has_begun() -> None:
    inner = Rows()
    env = CheckBatch(inner, "mine")
    inner.held = {**inner.obs, "level": np.array([99, 1], np.int32)}
    env.first()
    inner.held = {**inner.obs, "level": np.array([1, 99], np.int32)}
    with pytest.raises(SpaceMismatch, match="has value 99 above 2 in row 1"):
        env.first()


def test_begun_must_name_every_row() -> None:
    inner = Rows()
    inner.rows = np.array([True])
    with pytest.raises(SpaceMismatch, match=r"mine: begun\(\) returned .*return 2 booleans"):
        CheckBatch(inner, "mine").begun()


def test_a_reward_that_is_not_finite_is_refused_before_training_meets_it() -> None:
    with pytest.raises(
        SpaceMismatch, match=r"observation 'reward' has value inf, which is not finite: return a finite"
    ):
        CheckSpaces(Returns({**GOOD, "reward": np.float32("inf")}), "mine").step({})


def test_what_is_no_dictionary_is_named() -> None:
    with pytest.raises(SpaceMismatch, match="mine: step has returned a NoneType, which is no dict"):
        CheckSpaces(Returns(None), "mine").step({})  # type: ignore[arg-type]


def test_all_problems_of_a_step_are_handed_on_where_somebody_takes_them() -> None:
    obs = {"level": np.int32(3), "reward": np.float32("nan"), "is_last": 1, "is_first": np.bool_(False), "new": 1}
    found: list[Problem] = []
    env = CheckSpaces(Returns(obs), "mine", found.append)
    assert env.step({}) is obs
    assert [(each.kind, each.where) for each in found] == [
        ("bounds", "observation 'level'"),
        ("nan", "observation 'reward'"),
        ("dtype", "observation 'is_last'"),
        ("missing", "observation"),
        ("undeclared", "observation"),
    ]
