"""A replay elsewhere outlives the agent: it goes back to the snapshot by itself, and the run reaches its end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dreamfleet.checkpoint.snapshot import Snapshots
from invariants import Invariants
from support.cli_fleet import copy_invitation
from support.fleet_probe import events_of, read_events, wait_until
from support.mortal_fleet import MortalFleet

REMOTE = ["run.remote_replay=true", "run.max_restarts=10", "run.env_worker_restarts=100", "run.save_every=1"]


@contextmanager
def fleet_with_replay_elsewhere(
    folder: Path, *overrides: str
) -> Iterator[tuple[MortalFleet, subprocess.Popen[bytes], Path]]:
    """The fleet, the launcher of its replay, and the folder of that. At the end both agree on where the run stands."""
    run, elsewhere = folder / "run", folder / "elsewhere"
    with MortalFleet(run, *REMOTE, *overrides) as fleet:
        fleet.wait((run / "fleet.json").exists, "a fleet file")
        with fleet.joined("replay", copy_invitation(run, elsewhere, "replay")) as launcher:
            yield fleet, launcher, elsewhere
            assert launcher.wait(20) == 0
    assert Snapshots(run).manifest()["step"] == Snapshots(elsewhere).manifest()["step"]
    looked = Invariants(run)
    looked.look_at_records()
    assert not looked.broken


@pytest.mark.timeout(300)
def test_a_run_with_a_replay_elsewhere_survives_the_deaths_of_its_agent(tmp_path: Path) -> None:
    with fleet_with_replay_elsewhere(tmp_path, "run.steps=1800") as (fleet, replay, elsewhere):
        run = fleet.run
        fleet.wait_training()
        if Snapshots(run).latest() is None:
            fleet.kill("agent")  # replay has steps, and the agent begins from nothing, if it has no snapshot yet
        before = len(events_of(run, "restore"))
        for _ in range(2):
            seen = len(events_of(run, "snapshot"))
            fleet.wait(lambda: len(events_of(run, "snapshot")) > seen, "a further snapshot", 60)  # noqa: B023
            fleet.kill("agent")
        assert replay.poll() is None
        fleet.end()
    first, its_own = Snapshots(run).manifest(), Snapshots(elsewhere).manifest()
    assert 1800 <= first["step"] < 1850
    assert (first["updates"], first["lost"]) == (its_own["updates"], 0)
    assert len(events_of(run, "restore")) == before + 2
    assert not events_of(run, "steps_lost")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_replay_elsewhere_that_dies_is_started_again_by_its_own_launcher(tmp_path: Path) -> None:
    with fleet_with_replay_elsewhere(tmp_path, "run.steps=1500") as (fleet, launcher, elsewhere):
        fleet.wait(lambda: Snapshots(elsewhere).latest() is not None, "replay's first snapshot", 60)
        (folder,) = elsewhere.glob("remote/*")
        started = [entry for entry in read_events(folder) if entry["event"] == "start"]
        os.kill(started[0]["detail"]["pid"], signal.SIGKILL)
        wait_until(lambda: len(events_of(folder, "restart")) == 1, 20, "its restart")
        fleet.await_progress()
        fleet.kill("agent")
        assert psutil.pid_exists(launcher.pid)
        fleet.end()
    assert Snapshots(fleet.run).manifest()["step"] >= 1500


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_deaths_of_agent_and_replay_elsewhere_break_nothing(tmp_path: Path) -> None:
    with fleet_with_replay_elsewhere(tmp_path, "run.max_restarts=100") as (fleet, launcher, _):
        fleet.wait_training()
        for number in range(10):
            if number % 3 == 2:
                (child,) = psutil.Process(launcher.pid).children()
                child.kill()
            fleet.kill("agent")
        assert fleet.stop(signal.SIGTERM, timeout_s=60)[0] == 130
