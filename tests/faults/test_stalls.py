"""Roles that stop moving: named in time, with their stacks on disk, and the run goes on when they do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.supervision.role_spec import RoleSpec
from dreamfleet.supervision.supervisor import Supervisor
from support import fake_roles
from support.cli_fleet import CliFleet
from support.fleet_probe import events_of
from support.mortal_fleet import MortalFleet

TIMEOUT_S = 3.0


def named(run: Path, event: str, role: str) -> list[dict[str, Any]]:
    return [entry for entry in events_of(run, event) if entry["role"] == role]


def test_a_stopped_role_is_named_with_its_stacks_and_the_run_goes_on_with_it(tmp_path: Path) -> None:
    with MortalFleet(tmp_path, f"run.stall_timeout_s={TIMEOUT_S}", "run.save_every=0") as fleet:
        fleet.wait_training()
        for role in ("env-1", "logger", "replay", "agent"):
            os.kill(fleet.pid(role), signal.SIGSTOP)
            stopped = time.time()
            fleet.wait(lambda role=role: named(tmp_path, "stall", role), f"the stall of {role}")
            stall = named(tmp_path, "stall", role)[0]
            assert stall["time"] - stopped < TIMEOUT_S + 5
            assert stall["detail"]["reason"].startswith(f"{role} silent for ")
            stacks = tmp_path / f"logs/{role}.stacks.txt"
            assert "state T (stopped)" in stacks.read_text()
            os.kill(fleet.pid(role), signal.SIGCONT)
            fleet.wait(lambda role=role: named(tmp_path, "recovered", role), f"the recovery of {role}")
            fleet.wait(lambda stacks=stacks: "most recent call first" in stacks.read_text(), "Python stacks")
            fleet.await_progress()
        code, printed = fleet.stop()
    assert code == 130
    assert not events_of(tmp_path, "restart")
    assert "dreamfleet: stalled: replay silent for " in printed
    waiting = named(tmp_path, "stall", "replay")[0]["detail"]["reason"]
    assert "learner waits for replay to sample for " in waiting


def test_a_run_that_reached_its_budget_is_done_though_an_environment_hangs(tmp_path: Path) -> None:
    hanging = [
        "env=support.faulty_envs:FirstHangs",
        f"env.kwargs.file={tmp_path}/hangs",
        "run.envs=2",
        "run.envs_per_worker=1",
    ]
    with CliFleet(tmp_path, *hanging, "run.steps=500", "run.stop_timeout_s=1") as fleet:
        code, printed = fleet.finish()
    assert code == 0, printed
    (killed,) = events_of(tmp_path, "kill")
    assert f"dreamfleet: {killed['role']} did not stop within " in printed
    assert "done: step " in printed
    snapshot = Snapshots(tmp_path).latest()
    assert snapshot is not None
    assert int(snapshot.name) >= 500


@pytest.mark.slow
def test_a_stopped_role_is_started_again_where_that_is_wanted(tmp_path: Path) -> None:
    with MortalFleet(tmp_path, f"run.stall_timeout_s={TIMEOUT_S}", "run.stall_restart=true") as fleet:
        fleet.wait_training()
        for role in ("env-1", "replay", "agent"):
            os.kill(fleet.pid(role), signal.SIGSTOP)
            fleet.wait(lambda role=role: named(tmp_path, "restart", role), f"the restart of {role}")
            fleet.await_progress()
        assert fleet.stop()[0] == 130
    assert "stalled: agent silent for" in named(tmp_path, "restart", "agent")[0]["detail"]["reason"]


@pytest.mark.slow
def test_a_learner_that_hangs_is_named(tmp_path: Path) -> None:
    with MortalFleet(tmp_path, "agent=support.surviving:Hangs", f"run.stall_timeout_s={TIMEOUT_S}") as fleet:
        fleet.wait(lambda: bool(events_of(tmp_path, "stall")), "a stall")
        reason = events_of(tmp_path, "stall")[0]["detail"]["reason"]
        assert reason.startswith(("no update for ", "no step for "))
        stacks = tmp_path / "logs/agent.stacks.txt"
        fleet.wait(lambda: "surviving.py" in stacks.read_text(), "stacks of the agent")
        fleet.process.kill()
        fleet.process.wait(20)


@pytest.mark.slow
def test_a_role_that_is_locked_up_shows_its_stacks_all_the_same(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        spec = RoleSpec("role", fake_roles.locks_up)
        assert Supervisor([spec], folder, duration_s=10, stop_timeout_s=1, stall_timeout_s=2).run() == 1
    assert events_of(tmp_path, "stall")
    assert "in locks_up" in (tmp_path / "logs/role.stacks.txt").read_text()
