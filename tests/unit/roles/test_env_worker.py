"""The env worker: how it is made, and whole over a real batch server with an actor behind it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import current_context, set_context
from dreamfleet.core.errors import Disconnected, EnvError, EnvFailed, NotNow, SpaceMismatch, Stopped
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.waits import Wait
from dreamfleet.envs.builtin.dummy import Dummy
from dreamfleet.roles.env_worker.role import make_worker
from dreamfleet.transport.address import resolve_auto
from dreamfleet.transport.batching import BatchServer
from dreamfleet.transport.client import Client
from dreamfleet.transport.codec import PreparedRequest
from dreamfleet.transport.security import create_keys, load_client, load_server
from support.fake_envs import Echo
from support.fakes import make_context
from support.fleet_probe import wait_until
from support.worker_fleet import WAIT_S, WorkerFleet, expect_complete


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

    with pytest.raises(EnvFailed, match="train environment 2 cannot be made: RuntimeError: no display"):
        make_worker(make, [0, 1, 2], "train", FleetArgs())
    assert [env.closed for env in made] == [True, True]


def test_a_stop_does_not_wait_until_all_environments_are_made() -> None:
    context, _ = make_context("env-0")
    made: list[Echo] = []

    def make(index: int) -> Echo:
        made.append(Echo(10))
        if index == 1:
            context.stop.set()
        return made[-1]

    before = current_context()
    set_context(context)
    try:
        with pytest.raises(Stopped):
            make_worker(make, [0, 1, 2, 3], "train", FleetArgs())
    finally:
        set_context(before)
    assert [env.closed for env in made] == [True, True]


class WrongShape(Dummy):
    def step(self, action: Any) -> dict[str, Any]:
        return {**super().step(action), "vector": np.zeros(3, np.float32)}


def test_observations_are_held_to_their_spaces() -> None:
    worker = make_worker(lambda index: WrongShape(size=8), [5], "eval", FleetArgs())
    with pytest.raises(SpaceMismatch, match=r"eval environment 5 \(WrongShape\): observation 'vector' has shape"):
        worker.groups[0].advance([])


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
    worker = make_worker(lambda index: Echo(10), range(envs), "train", FleetArgs(actor_batch=actor_batch))
    assert [group.rows for group in worker.groups] == sizes
    indices = np.concatenate([group.numbers for group in worker.groups])
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

    def send(self, request: PreparedRequest) -> LostRequest:
        self.futures.append(LostRequest())
        return self.futures[-1]


def test_no_error_of_a_lost_connection_is_left_for_the_call_that_joins_again() -> None:
    """The client raises errors nobody asked for at its next call: the worker would leave and join once more."""
    worker = make_worker(lambda index: Echo(10), range(6), "train", FleetArgs(actor_batch=2))
    client = LosingClient()
    with pytest.raises(Disconnected):
        worker.step_until_disconnected(client)  # type: ignore[arg-type]
    assert [future.asked for future in client.futures] == [True, True, True]


def test_a_worker_that_joins_a_fleet_without_environments_sends_halves() -> None:
    worker = make_worker(lambda index: Echo(10), range(8), "train", FleetArgs(envs=0, remote_envs=True))
    assert [group.rows for group in worker.groups] == [4, 4]


@pytest.mark.parametrize(
    ("envs", "args"), [(1, {}), (5, {}), (4, {"actor_batch": 1})], ids=["one", "halves", "singles"]
)
def test_the_steps_of_every_environment_arrive_complete_and_in_order(tmp_path, envs: int, args: dict[str, Any]) -> None:
    with WorkerFleet(tmp_path, envs, **args) as fleet:
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
    with WorkerFleet(tmp_path, 2, "eval") as fleet:
        fleet.await_steps(20)
    assert set(fleet.replay.methods()) == {"add_batch_eval"}
    # Beside the steps there are, after a tenth of a second, the worker's figures and nothing else.
    assert set(fleet.logger.methods()) - {"add"} == {"tran_eval"}
    assert all((figures["worker"], figures["mode"]) == (fleet.worker._id, "eval") for figures in fleet.logger.metrics())
    for steps in fleet.streams("add_batch_eval").values():
        expect_complete(steps)


@pytest.mark.parametrize("restarted", [False, True], ids=["connection lost", "actor restarted"])
def test_after_a_disconnect_every_environment_begins_a_new_episode_in_a_new_stream(tmp_path, restarted: bool) -> None:
    with WorkerFleet(tmp_path, 3) as fleet:
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
    with WorkerFleet(tmp_path, 3) as fleet:
        fleet.await_steps(20)
        fleet.actor.slots.streams = np.full_like(fleet.actor.slots.streams, -1)
        fleet.await_steps(20)
    streams = fleet.streams()
    assert len(streams) == 6
    for steps in streams.values():
        expect_complete(steps)
    assert fleet.report.event_names() == ["disconnect"]


def test_a_worker_elsewhere_finishes_when_the_actor_ends(tmp_path) -> None:
    with WorkerFleet(tmp_path, 3, remote_envs=True) as fleet:
        fleet.await_steps(5)
        fleet.actor.end(WAIT_S)
        fleet.thread.join(WAIT_S)
        assert not fleet.thread.is_alive()
    assert fleet.report.finishes == ["the actor ended: the run has ended"]
    assert fleet.report.event_names() == ["joined", "run_ended"]


@pytest.mark.parametrize("envs", [1, 3])
def test_a_worker_elsewhere_that_is_stopped_leaves_its_places(tmp_path, envs: int) -> None:
    with WorkerFleet(tmp_path, envs, remote_envs=True) as fleet:
        fleet.await_steps(5)
        assert fleet.actor.slots.live(WAIT_S, remote=True) == envs
        fleet.context.stop.set()
        fleet.thread.join(WAIT_S)
        assert fleet.actor.slots.live(WAIT_S, remote=True) == 0


def test_a_worker_of_the_fleet_leaves_it_to_the_supervisor_to_end_the_run(tmp_path) -> None:
    with WorkerFleet(tmp_path, 3) as fleet:
        fleet.await_steps(5)
        fleet.actor.end(WAIT_S)
        wait_until(lambda: fleet.worker.waits.current().keys() == {Wait.SUPERVISOR_TO_STOP}, WAIT_S, "its wait")
    assert fleet.report.finishes == []


def test_a_worker_that_nobody_stops_after_the_end_joins_again(tmp_path) -> None:
    with WorkerFleet(tmp_path, 3, stop_timeout_s=0.1) as fleet:
        fleet.await_steps(5)
        fleet.actor.end(WAIT_S)
        wait_until(lambda: bool(fleet.report.events), WAIT_S, "an end of its wait")
        fleet.server.close()
        fleet.actor = fleet.new_actor()
        fleet.server = fleet.new_server()
        fleet.await_steps(20)
    assert fleet.report.events[0] == (
        "disconnect",
        {"reason": "the run has ended, but the supervisor did not stop this role"},
    )
    assert fleet.report.finishes == []


def test_a_worker_waits_until_the_actor_has_room(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dreamfleet.roles.env_worker.role.JOIN_AGAIN_S", 0.05)
    fleet = WorkerFleet(tmp_path, 3)
    fleet.actor.slots._max_slots = 1
    with fleet:
        wait_until(lambda: fleet.worker.joins > 3, WAIT_S, "further attempts to join")
        fleet.actor.slots._max_slots = 100
        fleet.await_steps(5)
    assert {name for name, _ in fleet.report.events} == {"disconnect"}
    assert "has room for 1," in str(fleet.report.events[0][1]["reason"])


def test_a_worker_without_room_ends_when_it_is_stopped(tmp_path) -> None:
    fleet = WorkerFleet(tmp_path, 1)
    fleet.actor.slots._max_slots = 1
    with fleet:
        wait_until(lambda: bool(fleet.report.events), WAIT_S, "an attempt to join")


def move_to_tcp(fleet: WorkerFleet, folder: Path) -> str:
    """Have the actor listen on a tcp address only, with the keys in `folder`; returns that."""
    create_keys(folder / "keys")
    address = resolve_auto("tcp://127.0.0.1:{auto}", folder, "actor")
    fleet.server.close()
    fleet.args = fleet.worker.args = fleet.args.model_copy(update={"actor_addr": address})
    fleet.server = BatchServer(address, name="actor", security=load_server(folder / "keys", "actor"))
    fleet.actor.serve(fleet.server)
    fleet.server.start()
    return address


def test_who_has_a_workers_key_cannot_drive_out_the_fleets_own_environments(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dreamfleet.roles.slots.REPLACED_S", 0.0)  # as while the learner holds everybody back
    fleet = WorkerFleet(tmp_path, 4)
    address = move_to_tcp(fleet, tmp_path)
    security = load_client(tmp_path / "keys", "actor", "worker")
    greed = {"env": np.arange(1024, dtype=np.int32), "stream": np.full(1024, -1, np.int64)}
    with fleet:
        fleet.await_steps(5)
        refused = 0
        for _ in range(9):
            with Client(address, name="greedy", security=security, timeout_s=WAIT_S) as client:
                try:
                    numbers = client.call("join", greed).result()["env"]
                    assert numbers.min() >= fleet.args.envs > 0
                except NotNow:
                    refused += 1
        fleet.await_steps(20)
    assert refused == 2
    assert (fleet.worker.joins, fleet.report.event_names()) == (1, [])


@pytest.mark.parametrize(("remote", "by_hand"), [(False, False), (True, False), (False, True)])
def test_the_fleets_own_workers_show_the_key_of_the_owner(tmp_path, remote: bool, by_hand: bool) -> None:
    fleet = WorkerFleet(tmp_path, 2, remote_envs=remote)
    fleet.context = replace(fleet.context, by_hand=by_hand)
    move_to_tcp(fleet, tmp_path)
    with fleet:
        slots = fleet.actor.slots
        wait_until(lambda: slots.live(WAIT_S) == 2, WAIT_S, "its environments to join")
        assert slots.limited[slots.streams >= 0].tolist() == [remote or by_hand] * 2


def test_a_worker_waits_for_an_actor_that_comes_later(tmp_path) -> None:
    fleet = WorkerFleet(tmp_path, 1)
    fleet.server.close()
    with fleet:
        fleet.server = fleet.new_server()
        fleet.await_steps(5)


def test_a_worker_that_waits_for_an_actor_ends_when_it_is_stopped(tmp_path) -> None:
    fleet = WorkerFleet(tmp_path, 1)
    fleet.server.close()
    with fleet:
        pass
    assert fleet.report.states == []


def test_the_status_says_how_far_the_worker_is(tmp_path) -> None:
    with WorkerFleet(tmp_path, 2) as fleet:
        fleet.await_steps(10)
    status = fleet.report.statuses[-1]
    assert (status["mode"], status["envs"], status["joins"]) == ("train", 2, 1)
    assert status["steps"] >= 10
    assert status["usage"]["ram_gb"] > 0
    assert 0 < status["step_s"] < WAIT_S
    assert 0 < status["actions_wait_s"] < WAIT_S
    assert sum(status["actions_s"].values()) >= 5  # one for every message, of two environments at most


class Busy:
    """Says how much of the time passes inside of environments, whatever they do."""

    def __init__(self, busy: float) -> None:
        self.busy = busy
        self.shown: dict[str, Any] = {}

    def take(self) -> dict[str, float]:
        return {"steps": 0, "step_ms": 0.0, "slowest_ms": 0.0, "elapsed_s": 0.1}


def test_environments_travel_together_while_steps_are_short_and_in_halves_while_they_are_not(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamfleet.roles.env_worker.role.REPORT_EVERY_S", 0.1)
    fleet = WorkerFleet(tmp_path, 5)
    times: Any = Busy(0.3)
    fleet.worker.times = times
    with fleet:
        for busy, sizes in ((0.05, [5]), (0.3, [5]), (0.6, [3, 2]), (0.3, [3, 2]), (0.05, [5])):
            times.busy = busy
            fleet.logger.await_calls(has_more(fleet.logger.methods().count("add") + 2))
            wait_until(lambda sizes=sizes: [group.rows for group in fleet.worker.groups] == sizes, WAIT_S, str(sizes))
            fleet.await_steps(20)
    assert fleet.worker.joins == 1
    streams = fleet.streams()
    assert len(streams) == 5
    for steps in streams.values():
        expect_complete(steps)
        assert all(step["own"] for step in steps)


def has_more(count: int) -> Any:
    return lambda client: client.methods().count("add") >= count


def test_more_environments_than_the_actor_takes_at_once_never_travel_together(tmp_path) -> None:
    fleet = WorkerFleet(tmp_path, 5, actor_batch=4)
    fleet.worker.times = Busy(0.0)  # type: ignore[assignment]
    with fleet:
        fleet.logger.await_calls(has_more(2))
        fleet.await_steps(20)
    assert [group.rows for group in fleet.worker.groups] == [3, 2]
