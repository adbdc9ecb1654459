"""Roles that are killed in a running fleet: each comes back, the others wait for it, and the run reaches its end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from dreamfleet.checkpoint.snapshot import Snapshots
from support.fleet_probe import events_of
from support.mortal_fleet import MortalFleet


def reasons(run: Path, role: str) -> list[tuple[Any, Any]]:
    return [(e["detail"]["reason"], e["detail"]["how"]) for e in events_of(run, "restart") if e["role"] == role]


def test_roles_that_are_killed_come_back_and_the_run_reaches_its_steps(tmp_path: Path) -> None:
    with MortalFleet(tmp_path, "run.steps=2500") as fleet:
        fleet.wait(lambda: Snapshots(tmp_path).latest() is not None and fleet.updates() > 0, "a snapshot", 60)
        for role in ("env-1", "logger", "replay", "agent"):
            fleet.kill(role)
        fleet.end()
    died = {
        role: f"{role} died: signal 9 (SIGKILL), see {tmp_path}/logs/{role}.log" for role in fleet.status()["roles"]
    }
    assert reasons(tmp_path, "env-1") == [(died["env-1"], "alone")]
    assert reasons(tmp_path, "logger") == [(died["logger"], "alone"), ("together with agent", "together")]
    assert reasons(tmp_path, "replay") == [(died["replay"], "alone"), ("together with agent", "together")]
    assert reasons(tmp_path, "agent") == [(died["agent"], "together")]
    assert not reasons(tmp_path, "env-0")
    assert Snapshots(tmp_path).manifest()["step"] >= 2500
    assert len(events_of(tmp_path, "steps_lost")) >= 1
    assert len(events_of(tmp_path, "restore")) == 1


@pytest.mark.slow
def test_roles_that_are_killed_together_come_back_together(tmp_path: Path) -> None:
    with MortalFleet(tmp_path, "run.steps=2500", "run.max_restarts=10") as fleet:
        fleet.wait(lambda: Snapshots(tmp_path).latest() is not None and fleet.updates() > 0, "a snapshot", 60)
        fleet.kill("logger", "replay", "agent")
        fleet.kill("env-0", "replay", "logger")
        fleet.kill("env-0", "env-1", "agent")
        fleet.end()
    assert Snapshots(tmp_path).manifest()["step"] >= 2500


def test_an_agent_that_dies_before_the_first_snapshot_begins_anew(tmp_path: Path) -> None:
    with MortalFleet(tmp_path, "run.steps=1500", "run.save_every=0") as fleet:
        fleet.wait_training()
        fleet.kill("agent")
        fleet.end()
    assert not events_of(tmp_path, "restore")


def test_a_run_that_is_stopped_while_replay_is_dead_still_saves(tmp_path: Path) -> None:
    with MortalFleet(tmp_path, "run.save_every=0") as fleet:
        fleet.wait_training()
        os.kill(fleet.pid("replay"), signal.SIGKILL)
        fleet.wait(lambda: bool(events_of(tmp_path, "exit")), "its exit")
        code, _ = fleet.stop(signal.SIGTERM, timeout_s=60)
    assert code == 130
    assert Snapshots(tmp_path).manifest()["updates"] > 0
    assert not events_of(tmp_path, "save_failed")


def test_more_deaths_than_the_budget_end_the_run_with_the_reason_and_a_snapshot(tmp_path: Path) -> None:
    with MortalFleet(tmp_path, "run.env_worker_restarts=1", "run.save_every=0") as fleet:
        fleet.wait_training()
        fleet.kill("env-1")
        os.kill(fleet.pid("env-1"), signal.SIGKILL)
        code, printed = fleet.finish()
    assert code == 1
    last = printed.splitlines()[-1]
    assert last.startswith("dreamfleet: env-1 died: signal 9 (SIGKILL)")
    assert last.endswith("restarted 1 times within 600 s, and run.env_worker_restarts allows no more")
    assert Snapshots(tmp_path).manifest()["updates"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_deaths_leave_no_processes_descriptors_or_memory_behind(tmp_path: Path) -> None:
    with MortalFleet(tmp_path, "run.env_worker_restarts=100", "run.save_every=0") as fleet:
        fleet.wait_training()
        fleet.kill("env-1")
        agent, supervisor = psutil.Process(fleet.pid("agent")), psutil.Process(fleet.process.pid)
        processes = len(fleet.processes())
        descriptors = agent.num_fds(), supervisor.num_fds()
        memory = agent.memory_info().rss, supervisor.memory_info().rss
        for _ in range(20):
            fleet.kill("env-1")
        assert len(fleet.processes()) == processes
        assert agent.num_fds() <= descriptors[0] + 2
        assert supervisor.num_fds() <= descriptors[1]
        assert agent.memory_info().rss < memory[0] + 40e6
        assert supervisor.memory_info().rss < memory[1] + 20e6
        assert fleet.stop()[0] == 130


@pytest.mark.slow
def test_a_worker_on_another_machine_that_is_killed_only_slows_the_run(tmp_path: Path) -> None:
    with MortalFleet(tmp_path) as fleet:
        fleet.wait_training()
        with fleet.joined("env") as role:
            fleet.wait(lambda: fleet.role("agent")["actor"]["envs"] == 3, "a third environment", 60)
            for process in [*psutil.Process(role.pid).children(recursive=True), role]:
                process.kill()
        fleet.wait(lambda: fleet.role("agent")["actor"]["envs"] == 2, "two environments again")
        fleet.await_progress()
        assert not events_of(tmp_path, "restart")
        assert fleet.stop()[0] == 130
