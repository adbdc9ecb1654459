"""How actor and learner share a role: they start together, and one that fails takes the other along."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import Stopped
from dreamfleet.roles import agent as agent_role
from fakes import SummingAgent, make_context

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


def test_stopping_is_no_failure(monkeypatch) -> None:
    run_parts(monkeypatch, is_stopped, waits_for_stop)


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
        agent_role.meet(barrier, WAIT_S, "learner to restore")

    with pytest.raises(ValueError, match="broke"):
        run_parts(monkeypatch, meets, fails)


def test_the_actor_waits_until_the_learner_has_restored() -> None:
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(1) as pool:
        actor = pool.submit(agent_role.meet, barrier, WAIT_S, "learner to restore")
        assert not actor.done()
        agent_role.meet(barrier, WAIT_S, "actor to start")
        actor.result(WAIT_S)


def test_a_meeting_that_nobody_comes_to_is_given_up() -> None:
    with pytest.raises(Stopped, match="the wait for the learner to restore was given up"):
        agent_role.meet(threading.Barrier(2), 0.0, "learner to restore")
