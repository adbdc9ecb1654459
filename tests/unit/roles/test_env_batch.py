"""Environments that step together, in a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import EnvError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.roles.env_worker.batch import BatchGroup
from dreamfleet.roles.env_worker.group import ActCall
from dreamfleet.roles.env_worker.instance import EnvInstance
from dreamfleet.roles.env_worker.measurements import EpisodeLogs, StepClock
from dreamfleet.roles.env_worker.role import make_worker
from dreamfleet.transport.codec import PreparedRequest
from support.counting import CountingEnv
from support.fake_envs import CountingBatch, Echo
from support.worker_fleet import WorkerFleet, expect_complete


def make_batch(index: int, room: int, same_step: bool = False, evaluation: bool = False) -> CountingBatch:
    return CountingBatch([CountingEnv(index + row, evaluation) for row in range(room)], same_step)


@pytest.mark.parametrize("same_step", [False, True], ids=["next step", "same step"])
@pytest.mark.parametrize(
    ("envs", "args"), [(1, {}), (5, {"actor_batch": 5}), (5, {"actor_batch": 2})], ids=["one", "one message", "several"]
)
def test_every_step_arrives_once_and_in_order(tmp_path, envs: int, args: dict[str, Any], same_step: bool) -> None:
    with WorkerFleet(tmp_path, envs, make=lambda index, room: make_batch(index, room, same_step), **args) as fleet:
        fleet.await_steps(100)
    streams = fleet.streams()
    assert sorted(steps[0]["env"] for steps in streams.values()) == list(range(envs))
    for steps in streams.values():
        expect_complete(steps)
        assert steps[0]["count"] == 0
        assert all(step["own"] for step in steps)
    assert fleet.report.events == []


def test_eval_steps_take_their_own_way(tmp_path) -> None:
    make = lambda index, room: make_batch(index, room, True, evaluation=True)  # noqa: E731
    with WorkerFleet(tmp_path, 3, "eval", make=make) as fleet:
        fleet.await_steps(30)
    assert set(fleet.replay.methods()) == {"add_batch_eval"}
    for steps in fleet.streams("add_batch_eval").values():
        expect_complete(steps)


def test_after_a_disconnect_all_of_them_begin_anew(tmp_path) -> None:
    with WorkerFleet(tmp_path, 3, make=lambda index, room: make_batch(index, room, True)) as fleet:
        fleet.await_steps(30)
        fleet.server.close()
        before = fleet.streams()
        fleet.server = fleet.new_server()
        fleet.await_steps(30)
    after = {stream: steps for stream, steps in fleet.streams().items() if stream not in before}
    assert sorted(steps[0]["env"] for steps in after.values()) == [0, 1, 2]
    for steps in fleet.streams().values():
        expect_complete(steps)


class Answers:
    """Answers the messages of a group as the actor would."""

    def __init__(self, group: BatchGroup, envs: list[int]) -> None:
        self.group = group
        rows = len(envs)
        group.begin(np.arange(rows) + 1, np.arange(rows) + 70, np.array(envs))
        self.replies: list[Arrays] = []

    def advance(self) -> list[dict[str, list[Any]]]:
        messages = self.group.advance(self.replies)
        self.replies = [self._answer(message) for message in messages]
        keys = ("stream", "count", "is_first", "is_last")
        return [{key: message.arrays[key].tolist() for key in keys} for message in messages]

    def _answer(self, message: PreparedRequest) -> Arrays:
        arrays = message.arrays
        return {"action": ((arrays["env"] * 1009 + arrays["count"] * 31) % 977).astype(np.int32)}


def test_the_first_observation_of_an_episode_that_has_begun_follows_its_last_one() -> None:
    env = make_batch(0, 2, same_step=True)
    group = BatchGroup(EnvInstance(env, 0), [0, 1], ActCall(), StepClock(60.0), EpisodeLogs(), 8)
    answers = Answers(group, [0, 1])
    for _ in range(5):
        (sent,) = answers.advance()
        assert sent["stream"] == [70, 71]
    (ended,) = answers.advance()  # the episode of environment 0 has five steps after its first
    assert (ended["count"], ended["is_last"]) == ([5, 5], [True, False])
    (begun,) = answers.advance()
    assert begun == {"stream": [70], "count": [6], "is_first": [True], "is_last": [False]}
    (following,) = answers.advance()
    assert (following["stream"], following["count"]) == ([70, 71], [7, 6])
    assert env.resets == [[True, True]] + [[False, False]] * 6
    assert group.steps == 7 * 2 + 1


def test_more_rows_than_a_message_may_have_go_out_in_several() -> None:
    env = make_batch(0, 5, same_step=True)
    for row in env.envs:
        row._length = 1  # all episodes end at once
    group = BatchGroup(EnvInstance(env, 0), range(5), ActCall(), StepClock(60.0), EpisodeLogs(), 2)
    answers = Answers(group, list(range(5)))
    assert group.messages == 3
    streams, everywhere = [[70, 71], [72, 73], [74]], [[True, True], [True, True], [True]]
    assert [sent["is_first"] for sent in answers.advance()] == everywhere
    for _ in range(3):
        assert [sent["is_last"] for sent in answers.advance()] == everywhere
        firsts = answers.advance()
        assert [sent["stream"] for sent in firsts] == streams
        assert [sent["is_first"] for sent in firsts] == everywhere


def test_a_factory_is_told_how_many_environments_there_is_room_for() -> None:
    rooms: list[tuple[int, int]] = []

    def make(index: int, room: int) -> CountingBatch:
        rooms.append((index, room))
        return make_batch(index, min(room, 3))

    worker = make_worker(make, [8, 9, 10, 11, 12], "train", FleetArgs())
    assert rooms == [(8, 5), (11, 2)]
    assert [group.numbers.tolist() for group in worker.groups] == [[8, 9, 10], [11, 12]]
    assert worker.status(NoClient(), None)["envs"] == 5  # type: ignore[arg-type]


def test_a_factory_is_told_of_the_life_of_its_worker() -> None:
    lives: list[int] = []

    def make(index: int, life: int) -> Echo:
        lives.append(life)
        return Echo(10)

    make_worker(make, [0, 1], "train", FleetArgs(life=7))
    assert lives == [7, 7]


class NoClient:
    def stats(self) -> dict[str, float]:
        return {}


@pytest.mark.parametrize(
    ("mode", "advice"),
    [
        ("train", "set run.envs_per_worker=4 and run.envs to a multiple of 4"),
        ("eval", "set run.envs_per_worker=4 and run.eval_envs to a multiple of 4, or to 0"),
    ],
)
def test_more_environments_than_there_is_room_for_are_refused_with_advice_and_closed(mode: str, advice: str) -> None:
    made: list[CountingBatch] = []

    def make(index: int) -> CountingBatch:
        made.append(make_batch(index, 4))
        return made[-1]

    with pytest.raises(EnvError, match=rf"{mode} environment 4 \(CountingBatch\) is vectorised and has 4.*{advice}"):
        make_worker(make, range(6), mode, FleetArgs())
    assert [batch.closed for batch in made] == [True, True]


def test_a_factory_without_such_parameters_is_called_with_the_index_alone() -> None:
    made: list[Any] = []
    make_worker(lambda *args, **kwargs: made.append((args, kwargs)) or Echo(10), [3, 4], "train", FleetArgs())
    assert made == [((3,), {}), ((4,), {})]
