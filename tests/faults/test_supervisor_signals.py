"""Signals to the supervisor, and its sudden death: the fleet ends and nothing is left."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from support.fleet_probe import OutsideFleet, events_of, wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_fleet_cleanly_with_code_130(tmp_path: Path, number: signal.Signals) -> None:
    with OutsideFleet(tmp_path, "idle", "starts_a_process", "idle") as fleet:
        fleet.signal(number)
        assert fleet.wait(10) == (130, f"dreamfleet: {number.name}: stopping, press Ctrl-C to kill\n")
        fleet.expect_nothing_left(5)
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("done", f"interrupted by {number.name}")
    assert [role["state"] for role in status["roles"].values()] == ["done"] * 3


def test_a_signal_during_the_start_stops_the_fleet(tmp_path: Path) -> None:
    with OutsideFleet(tmp_path, "never_ready", "idle", wait_ready=False) as fleet:
        wait_until(lambda: len(events_of(tmp_path, "start")) == 2, 10, "start of both")
        fleet.signal(signal.SIGINT)
        assert fleet.wait(10)[0] == 130
        fleet.expect_nothing_left()


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    with OutsideFleet(tmp_path, "deaf", "spins", "idle", stop_timeout_s=60) as fleet:
        fleet.signal(signal.SIGINT)
        wait_until(lambda: bool(events_of(tmp_path, "stop")), 10, "stop")
        asked = time.monotonic()
        fleet.signal(signal.SIGINT)
        assert fleet.wait(10)[0] == 130
        assert time.monotonic() - asked < 2
        fleet.expect_nothing_left()
    assert [entry["role"] for entry in events_of(tmp_path, "kill")] == ["supervisor", "deaf_0", "spins_1", "idle_2"]


def test_a_second_sigterm_leaves_the_clean_stop_its_time(tmp_path: Path) -> None:
    with OutsideFleet(tmp_path, "deaf", stop_timeout_s=1) as fleet:
        for _ in range(2):
            fleet.signal(signal.SIGTERM)
            wait_until(lambda: bool(events_of(tmp_path, "stop")), 10, "stop")
        stopped = events_of(tmp_path, "stop")[0]["time"]
        assert fleet.wait(10)[0] == 130
        assert events_of(tmp_path, "kill")[0]["time"] - stopped > 0.8
        fleet.expect_nothing_left()


@pytest.mark.parametrize("role", ["idle", "deaf", "spins", "starts_a_process", "hangs_at_exit"])
def test_a_killed_supervisor_leaves_no_role_behind(tmp_path: Path, role: str) -> None:
    with OutsideFleet(tmp_path, role, "idle") as fleet:
        fleet.signal(signal.SIGKILL)
        fleet.wait(10)
        fleet.expect_nothing_left(8)


def test_a_role_that_outlives_its_killed_supervisor_leaves_its_stacks_in_its_log(tmp_path: Path) -> None:
    with OutsideFleet(tmp_path, "deaf") as fleet:
        fleet.signal(signal.SIGKILL)
        fleet.wait(10)
        fleet.expect_nothing_left(8)
    assert "fake_roles.py" in (tmp_path / "logs/deaf_0.log").read_text()
