"""Ordinary errors in a running fleet: the agent starts again, and every environment goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.metrics.sinks.jsonl import last_step
from support import raising
from support.fleet_probe import events_of, read_events
from support.mortal_fleet import MortalFleet

BACK_WITHIN_S = 30.0
WORKERS = ("env-0", "env-1", "eval-0")


class RaisingFleet(MortalFleet):
    """Two environments, one for evaluation, and an agent; all of them raise errors when they are asked to."""

    def __init__(self, run: Path, *overrides: str) -> None:
        own = [
            "agent=support.raising:Agent",
            "env=support.raising:Env",
            "run.envs=2",
            "run.envs_per_worker=1",
            "run.eval_envs=1",
        ]
        super().__init__(run, *own, "run.report_every=0.5", "run.max_restarts=10", *overrides)

    def break_part(self, kind: str, words: str) -> None:
        """Waits until the error has ended the agent and the next one has begun."""
        before = self.restarts("agent")
        raised = raising.ask(self.run, kind, words)
        self.wait(raised, f"an error in {kind}")
        self.wait(lambda: self.restarts("agent") > before, f"a restart after an error in {kind}")

    def await_environments(self, count: int) -> None:
        """Until the actor hears of so many environments, and all of the fleet's own make steps."""
        self.await_progress()
        before = {name: self.role(name)["steps"] for name in WORKERS}

        def all_step() -> bool:
            return all(self.role(name)["steps"] > before[name] for name in WORKERS)

        self.wait(all_step, "steps of every environment", BACK_WITHIN_S)
        self.wait(lambda: self.role("agent")["actor"]["envs"] == count, f"{count} environments", BACK_WITHIN_S)


def expect_nothing_undone(run: Path) -> None:
    """No line that was written before the agent went back to a snapshot is of a later step than that."""
    restored = [(entry["time"], entry["detail"]["step"]) for entry in events_of(run, "restore")]
    rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    undone = [row for row in rows for time, step in restored if row["time"] < time and row["step"] > step]
    assert restored
    assert undone == []


@pytest.mark.timeout(300)
def test_an_error_in_the_agent_costs_no_environment_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one of the fleet's own, nor one for evaluation, nor one that joined from elsewhere."""
    monkeypatch.setenv(raising.VARIABLE, str(tmp_path))
    with RaisingFleet(tmp_path) as fleet, fleet_joined(fleet) as elsewhere:
        fleet.wait(lambda: Snapshots(tmp_path).latest() is not None and fleet.updates() > 0, "a snapshot", 60)
        fleet.kill("agent")  # an error within seconds of the very first start ends a run
        for number, kind in enumerate((raising.TRAIN, raising.POLICY, raising.REPORT)):
            fleet.break_part(kind, f"error {number}")
            fleet.await_environments(4)
        assert elsewhere.poll() is None
        reasons = [entry["detail"]["reason"] for entry in events_of(tmp_path, "restart") if entry["role"] == "agent"]
        assert [reason.rpartition(": ")[2] for reason in reasons[1:]] == [f"error {n}" for n in range(3)]
        assert not [entry for entry in events_of(tmp_path, "restart") if entry["role"] in WORKERS]
        assert fleet.stop(timeout_s=60)[0] == 130
        assert elsewhere.wait(20) == 0
    expect_nothing_undone(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_agent_that_is_asked_to_leave_by_somebody_else_is_no_end_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(raising.VARIABLE, str(tmp_path))
    with RaisingFleet(tmp_path) as fleet, fleet_joined(fleet) as elsewhere:
        fleet.wait(lambda: Snapshots(tmp_path).latest() is not None and fleet.updates() > 0, "a snapshot", 60)
        os.kill(fleet.pid("agent"), signal.SIGTERM)
        fleet.wait(lambda: fleet.restarts("agent") > 0, "a restart")
        fleet.await_environments(4)
        assert elsewhere.poll() is None
        assert not [entry for entry in events_of(tmp_path, "restart") if entry["role"] in WORKERS]
        assert fleet.stop(timeout_s=60)[0] == 130


@contextlib.contextmanager
def fleet_joined(fleet: RaisingFleet) -> Iterator[subprocess.Popen[bytes]]:
    fleet.wait((fleet.run / "fleet.json").exists, "a fleet file")
    with fleet.joined("env") as role:
        yield role


@pytest.mark.timeout(300)
def test_roles_that_die_again_while_they_go_back_go_back_all_the_same(tmp_path: Path) -> None:
    """The agent dies, and then, before they are ready, the logger and replay that start together with the next one."""
    roles = ("logger", "replay")
    with MortalFleet(tmp_path, "run.save_every=3") as fleet:
        fleet.wait(lambda: Snapshots(tmp_path).latest() is not None and fleet.updates() > 0, "a snapshot", 60)

        def ahead() -> bool:
            return last_step(tmp_path / "episodes.jsonl") > Snapshots(tmp_path).manifest()["step"]

        fleet.wait(ahead, "episodes after the snapshot")
        os.kill(fleet.pid("agent"), signal.SIGKILL)
        for life in (2, 3):
            for role in roles:
                os.kill(fleet.await_start(role, life), signal.SIGKILL)
        for role in roles:
            fleet.await_start(role, 4)
        fleet.await_progress()
        assert fleet.stop(timeout_s=60)[0] == 130
    for role in roles:
        events = [entry for entry in read_events(tmp_path) if entry["role"] == role]
        assert [entry["event"] for entry in events].count("ready") == 2, f"{role} was ready before it was killed"
        assert [entry["detail"]["how"] for entry in events if entry["event"] == "restart"] == ["together"] * 3
    assert (tmp_path / "episodes.lost.jsonl").stat().st_size > 0
    expect_nothing_undone(tmp_path)
