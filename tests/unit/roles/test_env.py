"""The env worker: its groups alone, and whole over a real batch server with an actor behind it."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counting import CountingAgent, CountingEnv
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import Disconnected, EnvError, SpaceMismatch
from dreamfleet.core.interfaces import Arrays
from dreamfleet.envs.dummy import Dummy
from dreamfleet.roles.actor import ActorRole
from dreamfleet.roles.env import EnvGroup, EnvWorker, make_worker
from dreamfleet.transport.batching import BatchServer
from dreamfleet.transport.codec import Outgoing
from fakes import FakeClient, make_context
from fleet_probe import wait_until

WAIT_S = 20.0


class Echo(Dummy):
    """Remembers the actions it was given. May end its episodes earlier than its spaces allow."""

    def __init__(self, length: int, ends_after: int | None = None) -> None:
        super().__init__(length=length, size=8)
        self._length = ends_after or length
        self.actions: list[tuple[int, bool]] = []
        self.closed = False

    def step(self, action: Any) -> dict[str, Any]:
        self.actions.append((int(action["action"]), bool(action["reset"])))
        return super().step(action)

    def close(self) -> None:
        self.closed = True


def actions(*values: int) -> Arrays:
    return {"action": np.array(values, np.int32)}


def test_a_group_hands_each_environment_its_own_action_and_collects_the_observations() -> None:
    envs = [Echo(10), Echo(10)]
    group = EnvGroup(envs, [3, 4], "train")
    group.begin(np.array([1, 2]), np.array([70, 71]), np.array([3, 4]))
    group.step({})
    group.step(actions(0, 4))
    assert [env.actions for env in envs] == [[(0, True), (0, False)], [(0, True), (4, False)]]
    sent = group.outgoing.arrays
    assert (sent["slot"].tolist(), sent["stream"].tolist()) == ([1, 2], [70, 71])
    assert (sent["count"].tolist(), sent["reward"].tolist()) == ([1, 1], [1, 0])
    assert sent["image"].shape == (2, 8, 8, 3)


def test_only_the_environment_whose_episode_ended_is_reset() -> None:
    envs = [Echo(3, ends_after=1), Echo(3)]
    group = EnvGroup(envs, [0, 1], "train")
    for _ in range(3):
        group.step(actions(1, 1))
    assert [env.actions[2] for env in envs] == [(1, True), (1, False)]
    assert group.outgoing.arrays["is_first"].tolist() == [True, False]


def test_joining_again_names_the_old_streams_and_starts_new_episodes() -> None:
    group = EnvGroup([Echo(10)], [-1], "eval")
    introduction = {key: value.tolist() for key, value in group.introduction().items()}
    assert introduction == {"env": [-1], "stream": [-1]}
    group.begin(np.array([1]), np.array([70]), np.array([16]))
    group.step({})
    group.step(actions(1))
    assert group.introduction()["stream"].tolist() == [70]
    assert group.introduction()["env"].tolist() == [16]  # the number it was given
    group.begin(np.array([1]), np.array([71]), np.array([16]))
    group.step({})
    assert group.outgoing.arrays["is_first"].tolist() == [True]


@pytest.mark.parametrize(("mode", "method"), [("train", "act"), ("eval", "act_eval")])
def test_the_mode_decides_which_method_is_called(mode: str, method: str) -> None:
    assert EnvGroup([Echo(10)], [0], mode).outgoing.method == method


def test_environments_of_different_spaces_are_refused_and_closed() -> None:
    made: list[Echo] = []

    def make(index: int) -> Echo:
        made.append(Echo(length=10 + index))
        return made[-1]

    with pytest.raises(SpaceMismatch, match="must have the same spaces"):
        make_worker(make, [0, 1, 2, 3], "train", FleetArgs())
    assert [env.closed for env in made] == [True] * 4


def test_environments_made_before_one_that_fails_are_closed() -> None:
    made: list[Echo] = []

    def make(index: int) -> Echo:
        if index == 2:
            raise RuntimeError("no display")
        made.append(Echo(10))
        return made[-1]

    with pytest.raises(RuntimeError, match="no display"):
        make_worker(make, [0, 1, 2], "train", FleetArgs())
    assert [env.closed for env in made] == [True, True]


class WrongShape(Dummy):
    def step(self, action: Any) -> dict[str, Any]:
        return {**super().step(action), "vector": np.zeros(3, np.float32)}


def test_observations_are_held_to_their_spaces() -> None:
    worker = make_worker(lambda index: WrongShape(size=8), [5], "eval", FleetArgs())
    with pytest.raises(SpaceMismatch, match=r"eval environment 5 \(WrongShape\): observation 'vector' has shape"):
        worker.groups[0].step({})


def test_an_environment_that_uses_a_key_of_the_fleet_is_refused_and_closed() -> None:
    env = Echo(10)
    env.obs_space = {**env.obs_space, "stream": env.obs_space["count"]}
    with pytest.raises(EnvError, match=r"train environment 0 \(Echo\) uses the keys \['stream'\]"):
        make_worker(lambda index: env, [0], "train", FleetArgs())
    assert env.closed


@pytest.mark.parametrize(
    ("envs", "actor_batch", "sizes"),
    [(1, 8, [1]), (2, 8, [1, 1]), (5, 8, [3, 2]), (8, 2, [2, 2, 2, 2]), (7, 3, [3, 3, 1])],
)
def test_two_halves_step_in_turn_or_more_groups_if_halves_do_not_fit(
    envs: int, actor_batch: int, sizes: list[int]
) -> None:
    worker = EnvWorker([Echo(10) for _ in range(envs)], range(envs), "train", FleetArgs(actor_batch=actor_batch))
    assert [len(group.envs) for group in worker.groups] == sizes
    indices = np.concatenate([group.indices for group in worker.groups])
    assert indices.tolist() == list(range(envs))


class LostRequest:
    """A future whose connection was lost."""

    def __init__(self) -> None:
        self.asked = False

    def result(self, timeout_s: float | None = None) -> Arrays:
        self.asked = True
        raise Disconnected("the connection was lost")


class LosingClient:
    def __init__(self) -> None:
        self.futures: list[LostRequest] = []

    def send(self, outgoing: Outgoing) -> LostRequest:
        self.futures.append(LostRequest())
        return self.futures[-1]


def test_no_error_of_a_lost_connection_is_left_for_the_call_that_joins_again() -> None:
    """The client raises errors nobody asked for at its next call: the worker would leave and join once more."""
    worker = EnvWorker([Echo(10) for _ in range(6)], range(6), "train", FleetArgs(actor_batch=2))
    client = LosingClient()
    with pytest.raises(Disconnected):
        worker.step_until_disconnected(client)  # type: ignore[arg-type]
    assert [future.asked for future in client.futures] == [True, True, True]


class Fleet:
    """An actor behind a real batch server and a worker in a thread, over one ipc address."""

    def __init__(self, folder: Path, envs: int, mode: str = "train", **args: Any) -> None:
        self.args = FleetArgs(logdir=folder, actor_addr=f"ipc://{folder}/actor", log_every=0, **args)
        self.replay, self.logger = FakeClient(), FakeClient()
        self.envs: list[CountingEnv] = []
        self.worker = make_worker(partial(self._make_env, mode == "eval"), range(envs), mode, self.args)
        self.context, self.report = make_context("env-0")
        self.failures: list[BaseException] = []
        self.actor = self.new_actor()
        self.server = self.new_server()
        self.thread = threading.Thread(target=self._run)

    def _make_env(self, evaluation: bool, index: int) -> CountingEnv:
        self.envs.append(CountingEnv(index, evaluation))
        return self.envs[-1]

    def new_actor(self) -> ActorRole:
        context, _ = make_context("actor")
        return ActorRole(CountingAgent(), self.args, self.replay, self.logger, context, self.failures.append)  # type: ignore[arg-type]

    def new_server(self) -> BatchServer:
        server = BatchServer(self.args.actor_addr, name="actor", on_error=self.failures.append)
        self.actor.serve(server)
        server.start()
        return server

    def _run(self) -> None:
        try:
            self.worker.run(self.context)
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> Fleet:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.context.stop.set()
        self.thread.join(WAIT_S)
        self.server.close()
        assert not self.thread.is_alive()
        assert self.failures == []

    def await_steps(self, count: int) -> None:
        """Until that many steps more have come to replay."""
        before = len(self.replay.calls)
        self.replay.await_calls(lambda client: len(client.calls) >= before + count)

    def streams(self, method: str = "add_batch") -> dict[int, list[dict[str, Any]]]:
        """The steps that came to replay, by stream and in order."""
        found: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for batch in self.replay.sent(method):
            for row, stream in enumerate(batch["stream"].tolist()):
                found[stream].append({key: value[row].item() for key, value in batch.items()})
        return found


def expect_complete(steps: list[dict[str, Any]]) -> None:
    """The steps of one stream are those of one environment, each once and in order, from an episode's first on."""
    start = steps[0]["count"]
    assert {step["env"] for step in steps} == {steps[0]["env"]}
    assert [step["count"] for step in steps] == list(range(start, start + len(steps)))
    assert steps[0]["is_first"]
    for step, following in itertools.pairwise(steps):
        assert step["is_last"] == following["is_first"]


@pytest.mark.parametrize(
    ("envs", "args"), [(1, {}), (5, {}), (4, {"actor_batch": 1})], ids=["one", "halves", "singles"]
)
def test_the_steps_of_every_environment_arrive_complete_and_in_order(tmp_path, envs: int, args: dict[str, Any]) -> None:
    with Fleet(tmp_path, envs, **args) as fleet:
        fleet.await_steps(60)
    streams = fleet.streams()
    assert sorted(steps[0]["env"] for steps in streams.values()) == list(range(envs))
    for steps in streams.values():
        expect_complete(steps)
        assert steps[0]["count"] == 0
        assert all(step["own"] for step in steps)
    assert fleet.report.states == ["ready"]
    assert fleet.report.events == []
    assert [env.closed for env in fleet.envs] == [True] * envs


def test_eval_steps_take_their_own_way(tmp_path) -> None:
    with Fleet(tmp_path, 2, "eval") as fleet:
        fleet.await_steps(20)
    assert set(fleet.replay.methods()) == {"add_batch_eval"}
    assert set(fleet.logger.methods()) == {"tran_eval"}
    for steps in fleet.streams("add_batch_eval").values():
        expect_complete(steps)


@pytest.mark.parametrize("restarted", [False, True], ids=["connection lost", "actor restarted"])
def test_after_a_disconnect_every_environment_begins_a_new_episode_in_a_new_stream(tmp_path, restarted: bool) -> None:
    with Fleet(tmp_path, 3) as fleet:
        fleet.await_steps(20)
        fleet.server.close()
        before = fleet.streams()
        if restarted:
            fleet.actor = fleet.new_actor()
        fleet.server = fleet.new_server()
        fleet.await_steps(20)
    after = {stream: steps for stream, steps in fleet.streams().items() if stream not in before}
    assert sorted(steps[0]["env"] for steps in after.values()) == [0, 1, 2]
    for stream, steps in fleet.streams().items():
        expect_complete(steps)
        assert steps == before.get(stream, steps)
    seen = [(step["env"], step["count"]) for steps in fleet.streams().values() for step in steps]
    assert len(seen) == len(set(seen))
    assert set(fleet.report.event_names()) == {"disconnect"}
    assert fleet.report.states == ["ready", "ready"]


def test_an_actor_that_forgot_the_environments_makes_them_join_again(tmp_path) -> None:
    with Fleet(tmp_path, 3) as fleet:
        fleet.await_steps(20)
        fleet.actor.slots.streams = np.full_like(fleet.actor.slots.streams, -1)
        fleet.await_steps(20)
    streams = fleet.streams()
    assert len(streams) == 6
    for steps in streams.values():
        expect_complete(steps)
    assert fleet.report.event_names() == ["disconnect"]


def test_a_worker_elsewhere_finishes_when_the_actor_ends(tmp_path) -> None:
    with Fleet(tmp_path, 3, remote_envs=True) as fleet:
        fleet.await_steps(5)
        fleet.actor.end(WAIT_S)
        fleet.thread.join(WAIT_S)
        assert not fleet.thread.is_alive()
    assert fleet.report.finishes == ["the actor ended: the run has ended"]
    assert fleet.report.events == []


def test_a_worker_of_the_fleet_leaves_it_to_the_supervisor_to_end_the_run(tmp_path) -> None:
    with Fleet(tmp_path, 3) as fleet:
        fleet.await_steps(5)
        fleet.actor.end(WAIT_S)  # for example because it failed
        wait_until(lambda: fleet.worker.waits.current().keys() == {"the supervisor to stop it"}, WAIT_S, "its wait")
    assert fleet.report.finishes == []


def test_a_worker_waits_for_an_actor_that_comes_later(tmp_path) -> None:
    fleet = Fleet(tmp_path, 1)
    fleet.server.close()
    with fleet:
        fleet.server = fleet.new_server()
        fleet.await_steps(5)


def test_a_worker_that_waits_for_an_actor_ends_when_it_is_stopped(tmp_path) -> None:
    fleet = Fleet(tmp_path, 1)
    fleet.server.close()
    with fleet:
        pass
    assert fleet.report.states == []


def test_the_status_says_how_far_the_worker_is(tmp_path) -> None:
    with Fleet(tmp_path, 2) as fleet:
        fleet.await_steps(10)
    status = fleet.report.statuses[-1]
    assert (status["mode"], status["envs"], status["joins"]) == ("train", 2, 1)
    assert status["steps"] >= 10
    assert status["usage"]["ram_gb"] > 0
