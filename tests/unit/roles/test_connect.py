"""Connections, keys and reports of roles."""

from __future__ import annotations

import errno
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import SecurityError, Stopped, TransportError
from dreamfleet.core.stop import Stop
from dreamfleet.roles.connect import (
    Parts,
    RunEnd,
    StatusReports,
    client_security,
    connect,
    server_security,
    until_stopped,
)
from dreamfleet.transport.security import create_keys
from support.fakes import make_context
from support.fleet_probe import wait_until

WAIT_S = 20.0


def test_a_role_connects_to_the_first_address_with_the_fleets_deadline() -> None:
    args = FleetArgs(wait_timeout_s=7.0, actor_addr="inproc://near,tcp://127.0.0.1:5555")
    with connect("actor", "env-0", args, None) as client:
        assert (client.address, client.name, client.timeout_s) == ("inproc://near", "env-0", 7)


def test_a_role_on_another_machine_connects_to_the_address_that_it_can_reach(tmp_path) -> None:
    create_keys(tmp_path / "keys")
    addresses = f"ipc://{tmp_path}/elsewhere/actor,tcp://127.0.0.1:5555"
    with connect("actor", "env-0", FleetArgs(logdir=tmp_path, actor_addr=addresses), None, key="worker") as client:
        assert client.address == "tcp://127.0.0.1:5555"


def test_a_role_run_by_hand_stays_for_the_agents_last_save() -> None:
    context, report = make_context("replay")
    ending = RunEnd(replace(context, by_hand=True))
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(ending.await_agent, True, WAIT_S)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        asking = pool.submit(ending.end, {})
        waiting.result(WAIT_S)
        assert not asking.done()
        ending.over()
        asking.result(WAIT_S)
    assert report.finishes == ["the run has ended"]


@pytest.mark.parametrize(("by_hand", "served"), [(True, False), (False, True)])
def test_a_role_without_an_agent_or_with_a_supervisor_ends_at_once(by_hand: bool, served: bool) -> None:
    context, _ = make_context("replay")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(RunEnd(replace(context, by_hand=by_hand)).await_agent, served, 60 * WAIT_S)
        waiting.result(WAIT_S)


def test_stopped_from_another_role_is_a_failure_unless_this_one_stops_too() -> None:
    stop = Stop()
    with pytest.raises(TransportError, match="has ended: the limiter is closed"), until_stopped(stop):
        raise Stopped("the limiter is closed")
    stop.set()
    with until_stopped(stop):
        raise Stopped("asked to")


def test_local_addresses_need_no_keys(tmp_path) -> None:
    args = FleetArgs(logdir=tmp_path, actor_addr="ipc:///tmp/x", replay_addr="ipc:///tmp/x,inproc://y")
    assert client_security("actor", args) is None
    assert server_security("replay", args) is None


def test_other_addresses_use_the_keys_of_the_run(tmp_path) -> None:
    near, far = "tcp://127.0.0.1:5555", "ipc:///tmp/x,tcp://127.0.0.1:5556"
    args = FleetArgs(logdir=tmp_path, actor_addr=near, logger_addr=far, clock_addr=near)
    with pytest.raises(SecurityError):
        client_security("actor", args)
    create_keys(tmp_path / "keys")
    for name in ("actor", "clock"):
        client, server = client_security(name, args), server_security(name, args)
        assert client is not None
        assert server is not None
        assert client.server_public == server.public
    assert server_security("logger", args) is not None


def test_a_role_elsewhere_needs_its_own_key_and_the_public_ones(tmp_path) -> None:
    public_keys = create_keys(tmp_path / "keys")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "keys").mkdir(parents=True)
    shutil.copy(tmp_path / "keys" / "worker.json", elsewhere / "keys")
    args = FleetArgs(logdir=elsewhere, public_keys=public_keys, actor_addr="tcp://127.0.0.1:5555")
    security = client_security("actor", args, "worker")
    assert security is not None
    assert security.server_public == public_keys["actor"]


def test_the_last_status_is_sent_when_the_role_ends() -> None:
    context, report = make_context()
    steps = [0]
    with StatusReports(context, lambda: {"steps": steps[0]}):
        steps[0] = 42
    assert report.statuses[-1]["steps"] == 42
    assert report.statuses[-1]["usage"].keys() >= {"cpu_percent", "ram_gb"}
    assert report.statuses[-1]["clock_s"] == pytest.approx(time.monotonic(), abs=60)


def test_a_role_of_two_parts_is_ready_when_both_are() -> None:
    context, report = make_context("agent")
    parts = Parts(context, ("actor", "learner"))
    actor, learner = parts.context("actor"), parts.context("learner")
    assert (actor.name, learner.name) == ("agent-actor", "agent-learner")
    assert actor.stop is learner.stop is context.stop
    actor.report.state("ready")
    assert report.states == []
    learner.report.state("ready")
    assert report.states == ["ready"]


def test_parts_report_side_by_side() -> None:
    context, report = make_context("agent")
    parts = Parts(context, ("actor", "learner"))
    parts.context("actor").report.status({"step": 1})
    parts.context("learner").report.status({"updates": 2})
    parts.context("actor").report.event("snapshot", {"step": 3})
    parts.context("learner").report.finish("done")
    assert report.statuses[-1] == {"actor": {"step": 1}, "learner": {"updates": 2}}
    assert report.events == [("snapshot", {"part": "actor", "step": 3})]
    assert report.finishes == ["done"]


def test_a_status_that_cannot_be_collected_is_followed_by_the_next_one(monkeypatch) -> None:
    """A process without a free descriptor could not read its own usage, and the thread ended the role with it."""
    monkeypatch.setattr("dreamfleet.roles.connect.STATUS_EVERY_S", 0.01)
    context, report = make_context("actor")
    tries = iter(range(1000))

    def collect() -> dict[str, int]:
        number = next(tries)
        if number < 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return {"number": number}

    with StatusReports(context, collect):
        wait_until(lambda: len(report.statuses) > 1, WAIT_S, "statuses after the failed ones")
    assert report.event_names() == ["status_failed"] * 3
