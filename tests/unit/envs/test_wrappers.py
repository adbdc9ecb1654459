"""Wrappers around environments of our own interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import SpaceMismatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.checks import CheckSpaces
from dreamfleet.envs.wrappers import ActionRepeat, NormalizeActions, ResizeImages, TimeLimit, UnifyDtypes

FLAGS = {"reward": Space(np.float32), "is_first": Space(bool), "is_last": Space(bool), "is_terminal": Space(bool)}
GO = {"action": np.int32(0), "reset": np.False_}


class Counter:
    """Episodes of `length` steps with 1, 2, 3, ... as rewards; shows and keeps what a test gives it."""

    def __init__(self, length: int = 5, obs: Mapping[str, tuple[Space, Any]] | None = None, **act: Space) -> None:
        self.length = length
        self.obs = dict(obs or {})
        self.obs_space = {**{key: space for key, (space, _) in self.obs.items()}, **FLAGS}
        self.act_space = {**act, "reset": Space(bool)}
        self.count = length
        self.actions: list[Mapping[str, Any]] = []
        self.closed = False

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        self.actions.append(action)
        begins = bool(action["reset"]) or self.count >= self.length
        self.count = 0 if begins else self.count + 1
        flags = (np.float32(self.count), np.bool_(begins), np.bool_(self.count >= self.length), np.False_)
        return {
            **{key: value for key, (_, value) in self.obs.items()},
            **dict(zip(FLAGS, flags, strict=True)),
            "log/steps": 1.0,
        }

    def close(self) -> None:
        self.closed = True


def test_repeats_sum_rewards_and_logs_and_stop_at_the_end() -> None:
    env = ActionRepeat(Counter(length=5), 3)
    steps = [env.step(GO) for _ in range(4)]
    assert [s["reward"] for s in steps] == [0, 1 + 2 + 3, 4 + 5, 0]
    assert [s["log/steps"] for s in steps] == [1, 3, 2, 1]
    assert [bool(s["is_last"]) for s in steps] == [False, False, True, False]
    assert [bool(s["is_first"]) for s in steps] == [True, False, False, True]
    assert steps[1]["reward"].dtype == np.float32


def test_a_sum_of_rewards_may_leave_the_bounds_of_one() -> None:
    inner = Counter(length=5)
    inner.obs_space["reward"] = Space(np.float32, (), 0.0, 5.0)
    env = ActionRepeat(inner, 3)
    env.step(GO)
    assert env.obs_space["reward"].contains(env.step(GO)["reward"])  # 1 + 2 + 3


def test_a_reset_is_not_repeated() -> None:
    inner = Counter(length=5)
    env = ActionRepeat(inner, 3)
    env.step(GO)
    env.step({**GO, "reset": np.True_})
    assert len(inner.actions) == 2


def test_a_time_limit_truncates_and_the_next_step_begins() -> None:
    inner = Counter(length=100)
    env = TimeLimit(inner, 3)
    steps = [env.step(GO) for _ in range(8)]
    assert [bool(s["is_last"]) for s in steps] == [False, False, False, True] * 2
    assert [bool(s["is_first"]) for s in steps] == [True, False, False, False] * 2
    assert not any(s["is_terminal"] for s in steps)
    assert [s["reward"] for s in steps] == [0, 1, 2, 3] * 2


def test_a_time_limit_counts_from_the_last_reset() -> None:
    env = TimeLimit(Counter(length=100), 3)
    resets = [True, False, False, True, False, False, False]
    lasts = [bool(env.step({**GO, "reset": np.bool_(reset)})["is_last"]) for reset in resets]
    assert lasts == [False] * 6 + [True]


def test_a_shorter_episode_is_not_cut() -> None:
    env = TimeLimit(Counter(length=2), 3)
    assert [bool(env.step(GO)["is_last"]) for _ in range(6)] == [False, False, True] * 2


def test_continuous_actions_are_scaled_and_clipped_and_others_left() -> None:
    inner = Counter(
        push=Space(np.float64, (2,), [0, -1], [10, 1]), free=Space(np.float32), jump=Space(np.int32, (), 0, 2)
    )
    env = NormalizeActions(inner)
    assert env.act_space["push"] == Space(np.float32, (2,), -1, 1)
    assert env.act_space["free"] == Space(np.float32)
    action = {"push": np.array([0.5, 7], np.float32), "free": np.float32(9), "jump": np.int32(1), "reset": np.False_}
    env.step(action)
    assert inner.actions[0]["push"].tolist() == [7.5, 1]
    assert inner.actions[0]["push"].dtype == np.float64
    assert inner.actions[0]["free"] == 9
    assert inner.actions[0]["jump"] == 1
    assert action["push"].tolist() == [0.5, 7], "replay keeps the action as the policy gave it"


def test_dtypes_are_unified() -> None:
    obs = {
        "wide": (Space(np.float64, (2,), -1e300, 3), np.array([0.5, 3])),
        "level": (Space(np.int64, (), 0, 7), np.int64(5)),
        "image": (Space(np.uint8, (2, 2, 1)), np.zeros((2, 2, 1), np.uint8)),
        "short": (Space(np.int16), np.int16(-5)),
    }
    inner = Counter(obs=obs, pick=Space(np.int64, (), 0, 4))
    assert UnifyDtypes.needed(inner)
    env = UnifyDtypes(inner)
    assert not UnifyDtypes.needed(env)
    assert env.obs_space["wide"] == Space(np.float32, (2,), -np.inf, 3)
    assert env.obs_space["level"] == Space(np.int32, (), 0, 7)
    assert env.obs_space["short"] == Space(np.int32, (), -(2**15), 2**15)
    assert env.act_space["pick"] == Space(np.int32, (), 0, 4)
    step = env.step({"pick": np.int32(3), "reset": np.False_})
    assert all(env.obs_space[key].violation(step[key]) is None for key in env.obs_space)
    assert step["image"] is obs["image"][1]
    assert inner.actions[0]["pick"].dtype == np.int64


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (Space(np.float64, (2,)), np.zeros(3), r"'x' has shape \(3,\) instead of \(2,\)"),
        (Space(np.int64, (), 0, 3), np.int64(3), "'x' has value 3 above 2"),
        (Space(np.int64), np.int64(2**40), "'x' has a value that int32 cannot hold"),
        (Space(np.float64), np.float32(1), "'x' has dtype float32 instead of float64"),
    ],
)
def test_what_a_changed_dtype_would_hide_is_named(space: Space, value: Any, message: str) -> None:
    with pytest.raises(SpaceMismatch, match=message):
        UnifyDtypes(Counter(obs={"x": (space, value)})).step(GO)


def test_images_are_resized_and_other_bytes_are_not() -> None:
    image, table = np.full((20, 30, 3), 7, np.uint8), np.zeros((5, 5), np.uint8)
    inner = Counter(obs={"image": (Space(np.uint8, image.shape), image), "table": (Space(np.uint8, (5, 5)), table)})
    env = ResizeImages(inner, (48, 64), "area")
    step = env.step(GO)
    assert env.obs_space["image"] == Space(np.uint8, (48, 64, 3))
    assert (step["image"] == np.full((48, 64, 3), 7)).all()
    assert step["table"] is table


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((20, 31, 3), np.uint8), r"'image' has shape \(20, 31, 3\) instead of \(20, 30, 3\)"),
        (np.zeros((20, 30, 3), np.float32), "'image' has dtype float32 instead of uint8"),
    ],
)
def test_an_image_that_breaks_its_space_is_named_before_it_is_resized(image: np.ndarray, message: str) -> None:
    env = ResizeImages(Counter(obs={"image": (Space(np.uint8, (20, 30, 3)), image)}), (64, 64), None)
    with pytest.raises(SpaceMismatch, match=message):
        env.step(GO)


def test_an_image_that_is_missing_is_left_for_the_space_checks_to_name() -> None:
    inner = Counter(obs={"image": (Space(np.uint8, (20, 30, 3)), np.zeros((20, 30, 3), np.uint8))})
    inner.obs.clear()
    with pytest.raises(SpaceMismatch, match=r"has no \['image'\]: return every key"):
        CheckSpaces(ResizeImages(inner, (64, 64), None), "mine").step(GO)


@pytest.mark.parametrize("wrap", [lambda e: ActionRepeat(e, 2), lambda e: TimeLimit(e, 2), NormalizeActions])
def test_closing_reaches_the_environment(wrap: Any) -> None:
    inner = Counter()
    wrap(inner).close()
    assert inner.closed
