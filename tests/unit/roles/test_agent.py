"""How actor and learner share a role: they start together, and one that fails takes the other along."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import (
    DeadlineExceeded,
    Disconnected,
    DreamfleetError,
    RemoteError,
    Stopped,
    TransportError,
)
from dreamfleet.core.interfaces import Arrays
from dreamfleet.roles import agent as agent_role
from dreamfleet.transport.client import Client
from dreamfleet.transport.server import Server
from support.fakes import SummingAgent, make_context
from support.snapshot_parts import commit

WAIT_S = 20.0


def run_parts(monkeypatch: pytest.MonkeyPatch, actor: Any, learner: Any) -> Any:
    monkeypatch.setattr(agent_role, "run_actor", actor)
    monkeypatch.setattr(agent_role, "run_learner", learner)
    context, report = make_context("agent")
    agent_role.run_agent(SummingAgent(), FleetArgs(), context)
    assert context.stop.is_set()
    return report


def waits_for_stop(agent: Any, barrier: threading.Barrier, args: FleetArgs, context: Any) -> None:
    assert context.stop.wait(WAIT_S)


def fails(agent: Any, barrier: threading.Barrier, args: FleetArgs, context: Any) -> None:
    raise ValueError("broke")


def is_stopped(agent: Any, barrier: threading.Barrier, args: FleetArgs, context: Any) -> None:
    raise Stopped("asked to")


@pytest.mark.parametrize("parts", [(fails, waits_for_stop), (waits_for_stop, fails)], ids=["actor", "learner"])
def test_a_part_that_fails_stops_the_other_and_its_error_is_raised(monkeypatch, parts: Any) -> None:
    with pytest.raises(ValueError, match="broke"):
        run_parts(monkeypatch, *parts)


def test_what_an_agent_tells_of_itself_is_in_the_roles_status(monkeypatch) -> None:
    monkeypatch.setattr(SummingAgent, "describe", lambda self: {"parameters": 12}, raising=False)
    report = run_parts(monkeypatch, is_stopped, waits_for_stop)
    assert report.statuses[0] == {"about": {"parameters": 12}}


def test_stopping_is_no_failure(monkeypatch) -> None:
    report = run_parts(monkeypatch, is_stopped, waits_for_stop)
    assert (report.finishes, report.event_names()) == ([], [])


def test_parts_take_short_turns_with_the_interpreter_while_they_run(monkeypatch) -> None:
    usual, before, found = sys.getswitchinterval(), 0.003, []
    sys.setswitchinterval(before)

    def looks(agent: Any, barrier: threading.Barrier, args: FleetArgs, context: Any) -> None:
        found.append(sys.getswitchinterval())

    run_parts(monkeypatch, looks, waits_for_stop)
    after = sys.getswitchinterval()
    sys.setswitchinterval(usual)
    assert (found, after) == ([pytest.approx(agent_role.SWITCH_INTERVAL_S)], pytest.approx(before))


def test_both_parts_get_the_same_agent_and_the_role_is_ready_when_both_are(monkeypatch) -> None:
    agents = []
    both_ready = threading.Barrier(2)  # a part that ends breaks the role's own barrier

    def part(agent: Any, barrier: threading.Barrier, args: FleetArgs, context: Any) -> None:
        agents.append(agent)
        context.report.state("ready")
        both_ready.wait(WAIT_S)

    report = run_parts(monkeypatch, part, part)
    assert agents[0] is agents[1]
    assert report.states == ["ready"]


def test_a_part_that_fails_before_the_meeting_frees_the_other_from_it(monkeypatch) -> None:
    def meets(agent: Any, barrier: threading.Barrier, args: FleetArgs, context: Any) -> None:
        agent_role.meet(barrier, WAIT_S, "restored learner")

    with pytest.raises(ValueError, match="broke"):
        run_parts(monkeypatch, meets, fails)


def test_the_actor_waits_until_the_learner_has_restored() -> None:
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(1) as pool:
        actor = pool.submit(agent_role.meet, barrier, WAIT_S, "restored learner")
        assert not actor.done()
        agent_role.meet(barrier, WAIT_S, "actor")
        actor.result(WAIT_S)


def test_a_meeting_that_nobody_comes_to_is_a_failure() -> None:
    with pytest.raises(DeadlineExceeded, match="the restored learner was not ready within 0 s"):
        agent_role.meet(threading.Barrier(2), 0.0, "restored learner")


def test_a_meeting_that_was_called_off_is_none() -> None:
    barrier = threading.Barrier(2)
    barrier.abort()
    with pytest.raises(Stopped, match="stopped while waiting for the restored learner"):
        agent_role.meet(barrier, WAIT_S, "restored learner")


def test_an_actor_that_begins_at_the_budget_of_the_run_ends_it_and_collects_nothing(tmp_path) -> None:
    commit(tmp_path, 10, updates=1)
    addresses = {f"{name}_addr": f"ipc://{tmp_path}/{name}" for name in ("actor", "replay", "logger")}
    args = FleetArgs(logdir=tmp_path, steps=10, **addresses)
    context, report = make_context("actor")
    with ThreadPoolExecutor(1) as pool, Client(args.actor_addr, name="env", timeout_s=WAIT_S) as client:
        running = pool.submit(agent_role.run_actor, SummingAgent(), threading.Barrier(1), args, context)
        try:
            batch = join(client)
            for _ in range(3):
                client.call("act", batch).result()
        finally:
            context.stop.set()
        running.result(WAIT_S)
    assert report.finishes == ["run.steps=10 reached"]
    assert report.statuses[-1]["step"] == 10


def join(client: Client) -> Arrays:
    """Joins an environment; returns the observation of a step of it."""
    joined = client.call("join", {"env": np.array([0], np.int32), "stream": np.array([-1])}).result()
    return {
        "slot": joined["slot"],
        "stream": joined["stream"],
        "value": np.zeros(1),
        "reward": np.zeros(1, np.float32),
        **{key: np.zeros(1, bool) for key in ("is_first", "is_last", "is_terminal", "is_eval")},
    }


class RunningActor:
    """An actor over real sockets with one environment, which has joined."""

    def __init__(
        self,
        folder: Path,
        agent: SummingAgent,
        add_batch: Callable[[Arrays], None],
        by_hand: bool = False,
        elsewhere: bool = False,
    ) -> None:
        addresses = {f"{name}_addr": f"ipc://{folder}/{name}" for name in ("actor", "replay", "logger")}
        args = FleetArgs(logdir=folder, remote_envs=by_hand or elsewhere, **addresses)
        self.replay = Server(args.replay_addr, name="replay")
        self.replay.bind("add_batch", add_batch)
        self.replay.bind("sizes", lambda _: {"step": np.array(0)})
        self.replay.start()
        # Takes everything: an actor that waited for it would not hear of the error when replay is slow to tell.
        self.logger = Server(args.logger_addr, name="logger")
        for method in ("tran", "add", "video"):
            self.logger.bind(method, lambda _: None)
        self.logger.start()
        self.context = replace(make_context("actor")[0], by_hand=by_hand)
        self.pool = ThreadPoolExecutor(1)
        self.client = Client(args.actor_addr, name="env", timeout_s=WAIT_S)
        self.running = self.pool.submit(agent_role.run_actor, agent, threading.Barrier(1), args, self.context)
        self.batch = join(self.client)

    def __enter__(self) -> RunningActor:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.stop.set()
        self.pool.shutdown()
        for end in (self.client, self.replay, self.logger):
            end.close()

    def act(self) -> Arrays:
        return self.client.call("act", self.batch).result()


def run_actor_until_it_fails(folder: Path, agent: SummingAgent, add_batch: Callable[[Arrays], None]) -> BaseException:
    """The environment acts until it gets an error; returns the error of the actor itself."""
    with RunningActor(folder, agent, add_batch) as actor:
        with pytest.raises(DreamfleetError):
            while True:
                actor.act()
        error = actor.running.exception(WAIT_S)
    assert error is not None
    return error


def test_an_actor_run_by_hand_waits_for_an_environment_that_steps(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(agent_role, "DISMISS_TIMEOUT_S", 0.0)
    with RunningActor(tmp_path, SummingAgent(), lambda _: None, by_hand=True) as actor:
        actor.act()
        actor.context.stop.set()
        with pytest.raises(TimeoutError):
            actor.running.result(0.2)
        with pytest.raises(Stopped, match="the run has ended"):
            actor.act()
        actor.running.result(WAIT_S)


@pytest.mark.parametrize("ends", [False, True], ids=["this role ends", "the run ends"])
def test_environments_hear_of_the_end_of_the_run_and_of_no_other(tmp_path, ends: bool) -> None:
    with RunningActor(tmp_path, SummingAgent(), lambda _: None, elsewhere=True) as actor:
        actor.act()
        if ends:
            actor.context.run_ends.set()
        actor.context.stop.set()
        with pytest.raises(Stopped if ends else Disconnected):
            while True:
                actor.act()
        actor.running.result(WAIT_S)


def test_environments_are_asked_to_join_the_next_actor_when_the_agent_has_failed(tmp_path) -> None:
    agent = SummingAgent()
    agent.policy = lambda carry, obs, mode: obs["velocity"]  # type: ignore[assignment, method-assign, return-value]
    with RunningActor(tmp_path, agent, lambda _: None, elsewhere=True) as actor:
        with pytest.raises(Disconnected, match="the agent has failed and will be restarted: KeyError"):
            actor.act()
        assert isinstance(actor.running.exception(WAIT_S), KeyError)


def test_an_error_of_the_policy_ends_the_actor_with_its_traceback(tmp_path) -> None:
    agent = SummingAgent()
    agent.policy = lambda carry, obs, mode: obs["velocity"]  # type: ignore[assignment, method-assign, return-value]
    error = run_actor_until_it_fails(tmp_path, agent, lambda _: None)
    assert isinstance(error, KeyError)
    assert any(frame.name == "<lambda>" for frame in traceback.extract_tb(error.__traceback__))


def test_a_replay_that_ends_by_itself_is_a_failure_of_the_actor(tmp_path) -> None:
    def ended(_: Arrays) -> None:
        raise Stopped("replay insert ended: the limiter is closed")

    error = run_actor_until_it_fails(tmp_path, SummingAgent(), ended)
    assert isinstance(error, TransportError)
    assert "has ended: replay insert ended" in str(error)


def test_an_error_inside_replay_ends_the_actor(tmp_path) -> None:
    def breaks(_: Arrays) -> None:
        raise KeyError("priority")

    error = run_actor_until_it_fails(tmp_path, SummingAgent(), breaks)
    assert isinstance(error, RemoteError)
    assert "priority" in str(error)
