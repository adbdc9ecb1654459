"""Environments that travel in one message, stepped without an actor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import Stopped
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.stop import Stop
from dreamfleet.roles.env_worker.group import StepGroup, act_call_of, regroup
from dreamfleet.roles.env_worker.instance import EnvInstance, EnvMaker, EnvRestarter
from dreamfleet.roles.env_worker.measurements import EpisodeLogs, StepClock
from support.fake_envs import Echo
from support.fakes import make_context


def make_group(envs: list[Any], indices: list[int], mode: str, apart: bool = False) -> StepGroup:
    instances = [EnvInstance(env, index) for env, index in zip(envs, indices, strict=True)]
    return StepGroup(instances, act_call_of(mode, apart), StepClock(60.0), EpisodeLogs())


def actions(*values: int) -> Arrays:
    return {"action": np.array(values, np.int32)}


def test_a_group_hands_each_environment_its_own_action_and_collects_the_observations() -> None:
    envs = [Echo(10), Echo(10)]
    group = make_group(envs, [3, 4], "train")
    group.begin(np.array([1, 2]), np.array([70, 71]), np.array([3, 4]))
    group.step({})
    group.step(actions(0, 4))
    assert [env.actions for env in envs] == [[(0, True), (0, False)], [(0, True), (4, False)]]
    sent = group.request.arrays
    assert (sent["slot"].tolist(), sent["stream"].tolist()) == ([1, 2], [70, 71])
    assert (sent["count"].tolist(), sent["reward"].tolist()) == ([1, 1], [1, 0])
    assert sent["image"].shape == (2, 8, 8, 3)


def test_only_the_environment_whose_episode_ended_is_reset() -> None:
    envs = [Echo(3, ends_after=1), Echo(3)]
    group = make_group(envs, [0, 1], "train")
    for _ in range(3):
        group.step(actions(1, 1))
    assert [env.actions[2] for env in envs] == [(1, True), (1, False)]
    assert group.request.arrays["is_first"].tolist() == [True, False]


def test_joining_again_names_the_old_streams_and_starts_new_episodes() -> None:
    group = make_group([Echo(10)], [-1], "eval")
    introduction = {key: value.tolist() for key, value in group.join_request().items()}
    assert introduction == {"env": [-1], "stream": [-1]}
    group.begin(np.array([1]), np.array([70]), np.array([16]))
    group.step({})
    group.step(actions(1))
    assert group.join_request()["stream"].tolist() == [70]
    assert group.join_request()["env"].tolist() == [16]  # the number it was given
    group.begin(np.array([1]), np.array([71]), np.array([16]))
    group.step({})
    assert group.request.arrays["is_first"].tolist() == [True]


@pytest.mark.parametrize(
    ("mode", "apart", "method"),
    [("train", False, "act"), ("train", True, "act"), ("eval", False, "act"), ("eval", True, "act_eval")],
)
def test_rows_say_what_they_are_for_and_ask_apart_only_where_it_matters(mode: str, apart: bool, method: str) -> None:
    request = make_group([Echo(10)] * 2, [0, 1], mode, apart).request
    assert request.method == method
    assert request.arrays["is_eval"].tolist() == [mode == "eval"] * 2


def test_groups_of_another_size_go_on_where_the_old_ones_have_come_to() -> None:
    envs = [Echo(10), Echo(10, ends_after=2), Echo(10)]
    halves = [make_group(envs[:2], [5, 6], "train"), make_group(envs[2:], [7], "train")]
    halves[0].begin(np.array([1, 2]), np.array([70, 71]), np.array([5, 6]))
    halves[1].begin(np.array([3]), np.array([72]), np.array([7]))
    for _ in range(3):
        for group in halves:
            group.step(actions(*[1] * group.rows))
    (whole,) = regroup(halves, 3, act_call_of("train", apart=False))
    assert whole.join_request()["env"].tolist() == [5, 6, 7]
    assert whole.join_request()["stream"].tolist() == [70, 71, 72]
    assert whole.request.arrays["slot"].tolist() == [1, 2, 3]
    assert whole.steps == 9
    whole.step(actions(0, 1, 2))
    assert [env.actions[-1] for env in envs] == [
        (0, False),
        (1, True),
        (2, False),
    ]  # the second one's episode had ended
    first, second = regroup([whole], 2, act_call_of("train", apart=False))
    assert (first.rows, second.rows, first.steps + second.steps) == (2, 1, 12)
    second.step(actions(4))
    assert envs[2].actions[-1] == (4, False)
    assert second.request.arrays["stream"].tolist() == [72]


class AsksToStop(Echo):
    """The run ends while it is in its step of this number."""

    def __init__(self, stop: Stop, at: int) -> None:
        super().__init__(10)
        self._stop, self._at = stop, at

    def step(self, action: Any) -> dict[str, Any]:
        if len(self.actions) == self._at:
            self._stop.set()
        return super().step(action)


def test_a_stop_waits_for_one_environment_and_not_for_all_of_a_group() -> None:
    context, _ = make_context("env-0")
    envs = [Echo(10), AsksToStop(context.stop, 1), Echo(10), Echo(10)]
    group = make_group(envs, [0, 1, 2, 3], "train")
    maker = EnvMaker(lambda index: envs[index], "train")
    restarts = EnvRestarter(maker, FleetArgs(), context, StepClock(60.0), never_joins)
    group.step({}, restarts)
    with pytest.raises(Stopped):
        group.step(actions(1, 1, 1, 1), restarts)
    assert [len(env.actions) for env in envs] == [2, 2, 1, 1]


def never_joins(introduction: Arrays) -> Arrays:
    raise AssertionError("nothing was restarted")
