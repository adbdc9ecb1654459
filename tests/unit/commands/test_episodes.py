"""Episodes of several environments: exactly as many as asked for, whole ones, and short ones not favoured."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from dreamfleet.commands.evaluate.episodes import SequentialEnvs, idle_action, play, share
from dreamfleet.core.spaces import Space

FLAGS = {"reward": Space(np.float32), **{key: Space(bool) for key in ("is_first", "is_last", "is_terminal")}}


class Lengths:
    """Episode number k has the k-th length; every step's reward is 1."""

    obs_space: ClassVar = {"count": Space(np.int32), **FLAGS}
    act_space: ClassVar = {"action": Space(np.int32, (), 0, 3), "reset": Space(bool)}

    def __init__(self, *lengths: int) -> None:
        self.lengths = list(lengths)
        self.episode, self.count, self.steps = -1, 0, 0

    def step(self, action: Any) -> dict[str, Any]:
        self.steps += 1
        first = bool(action["reset"])
        if first:
            self.episode, self.count = self.episode + 1, 0
        else:
            self.count += 1
        last = self.count == self.lengths[self.episode]
        return {
            "count": np.int32(self.count),
            "reward": np.float32(not first),
            "is_first": np.bool_(first),
            "is_last": np.bool_(last),
            "is_terminal": np.bool_(last),
        }

    def close(self) -> None:
        raise RuntimeError("which changes nothing")


class Watching:
    """A policy that remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[dict[str, np.ndarray]] = []

    def __call__(self, obs: Any, state: Any) -> Any:
        assert (state is None) == (not self.seen)
        self.seen.append(obs)
        return {"action": np.zeros(len(obs["is_first"]), np.int32)}, "state"


@pytest.mark.parametrize(("episodes", "envs", "shares"), [(7, 3, [3, 2, 2]), (2, 2, [1, 1]), (5, 1, [5])])
def test_episodes_are_shared_out_before_the_first_step(episodes, envs, shares) -> None:
    assert share(episodes, envs) == shares


def test_each_environment_plays_its_share_whatever_the_lengths() -> None:
    quick, slow = Lengths(1, 2, 1, 1, 1), Lengths(9, 5, 1)
    played = play(SequentialEnvs([quick, slow]), Watching(), [2, 2])
    assert [episode.length for episode in played] == [1, 2, 9, 5]
    assert [episode.score for episode in played] == [1, 2, 9, 5]
    assert quick.steps == 2 + 3  # it stands still once it has had its share


def test_the_policy_sees_every_first_step_and_no_last_one() -> None:
    policy = Watching()
    play(SequentialEnvs([Lengths(2, 3)]), policy, [2])
    assert [int(obs["count"][0]) for obs in policy.seen] == [0, 1, 0, 1, 2]
    assert [bool(obs["is_first"][0]) for obs in policy.seen] == [True, False, True, False, False]


def test_the_first_episode_is_watched_from_beginning_to_end() -> None:
    frames: list[int] = []
    play(
        SequentialEnvs([Lengths(3, 2), Lengths(1, 1)]), Watching(), [2, 1], lambda obs: frames.append(int(obs["count"]))
    )
    assert frames == [0, 1, 2, 3]


class Together:
    """Two environments as a batch that begins episodes on the step after the end."""

    num_envs = 2
    obs_space, act_space = Lengths.obs_space, Lengths.act_space

    def __init__(self, *envs: Lengths) -> None:
        self.envs = envs
        self.ended = np.ones(2, bool)

    def step(self, actions: Any) -> dict[str, np.ndarray]:
        shown = [env.step({"reset": ended}) for env, ended in zip(self.envs, self.ended, strict=True)]
        obs = {key: np.stack([one[key] for one in shown]) for key in self.obs_space}
        self.ended = obs["is_last"]
        return obs

    def begun(self) -> np.ndarray:
        return np.zeros(2, bool)

    def first(self) -> dict[str, np.ndarray]:
        raise AssertionError("nothing has begun")

    def close(self) -> None: ...


def test_a_batch_that_begins_on_the_next_step_counts_the_same() -> None:
    played = play(Together(Lengths(1, 2, 1, 1, 1, 1, 1, 1, 1, 1), Lengths(9, 5, 1)), Watching(), [2, 2])
    assert [episode.length for episode in played] == [1, 2, 9, 5]
    assert [episode.score for episode in played] == [1, 2, 9, 5]


def test_an_idle_action_is_one_of_the_space() -> None:
    spaces = {"a": Space(np.int32, (2,), [0, 3], [4, 9]), "b": Space(np.float32, (1,), 0.5, 2), "c": Space(np.float32)}
    idle = idle_action(spaces, (3,))
    for key, space in spaces.items():
        assert all(space.contains(row) for row in idle[key]), key
    assert idle["reset"].tolist() == [True] * 3
