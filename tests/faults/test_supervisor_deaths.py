"""Roles that die, hang or do not listen: named, cleared away, and the others ended in time."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.supervision.role_spec import RestartRule, RoleSpec
from dreamfleet.supervision.supervisor import Supervisor
from support import fake_roles
from support.fleet_probe import OutsideFleet, events_of, is_running, wait_until


def supervise(run: Path, *specs: RoleSpec, **options: float) -> int:
    with RunFolder(run) as folder:
        code = Supervisor(specs, folder, **options).run()
    assert psutil.Process().children(recursive=True) == []
    return code


def seconds_to_end(run: Path) -> float:
    """From the first role's start."""
    return float(events_of(run, "failed")[0]["time"] - events_of(run, "start")[0]["time"])


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (partial(fake_roles.dies_by, signal.SIGKILL), "role died: signal 9 (SIGKILL), see "),
        (partial(fake_roles.dies_by, signal.SIGRTMIN + 3), "role died: signal 37 (unknown), see "),
        (partial(fake_roles.leaves_without_a_word, 7), "role died: its process ended with code 7, see "),
        (partial(fake_roles.leaves_without_a_word, 0), "role died: its process ended with code 0, see "),
    ],
    ids=["SIGKILL", "real-time signal", "exit 7", "exit 0"],
)
def test_a_dead_role_is_reported_with_its_last_words(
    tmp_path: Path, target: Callable[[], object], line: str, capsys: pytest.CaptureFixture
) -> None:
    log = tmp_path / "logs/role.log"
    log.parent.mkdir()
    log.write_text("of a run before\n")
    assert supervise(tmp_path, RoleSpec("idle", fake_roles.idle), RoleSpec("role", target)) == 1
    assert capsys.readouterr().err == f"last words\ndreamfleet: {line}{log}\n"


def test_a_crash_in_native_code_shows_the_python_stack(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert supervise(tmp_path, RoleSpec("role", fake_roles.reads_address_zero)) == 1
    printed = capsys.readouterr().err
    assert "in reads_address_zero" in printed
    assert printed.splitlines()[-1].startswith("dreamfleet: role died: signal 11 (SIGSEGV)")


def test_a_role_killed_from_outside_ends_the_run(tmp_path: Path) -> None:
    with OutsideFleet(tmp_path, "idle", "starts_a_process", "idle") as fleet:
        psutil.Process(fleet.pids["starts_a_process_1"]).kill()
        code, printed = fleet.wait(10)
        assert code == 1
        assert "dreamfleet: starts_a_process_1 died: signal 9 (SIGKILL)" in printed
        fleet.expect_nothing_left(5)


def test_sigterm_to_a_role_sets_its_stop(tmp_path: Path) -> None:
    with OutsideFleet(tmp_path, "idle", "idle") as fleet:
        psutil.Process(fleet.pids["idle_1"]).terminate()
        code, printed = fleet.wait(10)
        assert (code, printed.split(", see")[0]) == (1, "dreamfleet: idle_1 ended unexpectedly")
        fleet.expect_nothing_left()


def test_sigint_to_a_role_is_ignored_and_sigusr1_dumps_its_stacks(tmp_path: Path) -> None:
    stacks = tmp_path / "logs/idle_0.stacks.txt"
    with OutsideFleet(tmp_path, "idle") as fleet:
        role = psutil.Process(fleet.pids["idle_0"])
        role.send_signal(signal.SIGINT)
        role.send_signal(signal.SIGUSR1)
        wait_until(lambda: "in idle" in stacks.read_text(), 10, "stacks in their file")
        assert is_running(role.pid)
        fleet.signal(signal.SIGTERM)
        assert fleet.wait(10)[0] == 130


@pytest.mark.parametrize("deaf", [fake_roles.deaf, fake_roles.spins], ids=["native", "loop"])
def test_a_role_that_ignores_stop_is_killed_in_time_and_the_next_rank_is_still_asked(
    tmp_path: Path, deaf: Callable[[], object], capsys: pytest.CaptureFixture
) -> None:
    specs = [RoleSpec("deaf", deaf, 0), RoleSpec("last", fake_roles.finishes, 1)]
    assert supervise(tmp_path, *specs, stop_timeout_s=2) == 1
    assert seconds_to_end(tmp_path) < 4
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"dreamfleet: deaf did not stop within [23]\.\d s and was killed, see .*: increase run\.stop_timeout_s .*",
        line,
    )
    assert {entry["role"]: entry["detail"] for entry in events_of(tmp_path, "exit")} == {
        "deaf": {"code": -9, "state": "killed"},
        "last": {"code": 0, "state": "done"},
    }


def test_a_failure_is_not_hidden_by_roles_that_do_not_stop(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    specs = [RoleSpec("deaf", fake_roles.deaf), RoleSpec("role", fake_roles.raises)]
    assert supervise(tmp_path, *specs, stop_timeout_s=1) == 1
    assert seconds_to_end(tmp_path) < 3
    assert capsys.readouterr().err.endswith("dreamfleet: role failed: ValueError: the role broke\n")


def test_a_role_that_hangs_does_not_cost_the_next_one_its_last_save(tmp_path: Path) -> None:
    saver = RoleSpec("saver", partial(fake_roles.stops_slowly, 3.0), 1, saves=True)
    specs = [RoleSpec("deaf", fake_roles.deaf, 0), saver, RoleSpec("role", fake_roles.finishes, 2)]
    assert supervise(tmp_path, *specs, stop_timeout_s=2, save_timeout_s=30) == 1
    assert [entry["role"] for entry in events_of(tmp_path, "kill")] == ["deaf"]


def env_worker(target: Callable[[], object]) -> RoleSpec:
    return RoleSpec("env-0", target, 0, restart=RestartRule(3, "run.env_worker_restarts", stateless=True))


def test_an_environment_that_outlasts_a_clean_stop_is_killed_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    specs = [env_worker(fake_roles.deaf), RoleSpec("role", fake_roles.finishes, 1)]
    assert supervise(tmp_path, *specs, stop_timeout_s=0.5) == 0
    assert [entry["role"] for entry in events_of(tmp_path, "kill")] == ["env-0"]
    assert not events_of(tmp_path, "failure")
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"dreamfleet: env-0 did not stop within \d+\.\d s and was killed, see .*env-0\.log: "
        r"increase run\.stop_timeout_s if it needs more time",
        line,
    )
    assert [f"dreamfleet: {entry['detail']['text']}" for entry in events_of(tmp_path, "warning")] == [line]
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["reason"], status["roles"]["env-0"]["state"]) == ("done", "goal reached", "killed")


def test_an_environment_that_crashes_in_a_clean_stop_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """As simulators do that are closed while they draw."""
    saver = RoleSpec("saver", partial(fake_roles.stops_slowly, 1.5), 1, saves=True)
    specs = [env_worker(fake_roles.dies_when_asked_to_stop), saver, RoleSpec("role", fake_roles.finishes, 2)]
    assert supervise(tmp_path, *specs, stop_timeout_s=1, save_timeout_s=30) == 0
    assert not events_of(tmp_path, "kill")
    assert "dreamfleet: env-0 died: signal 6 (SIGABRT), see " in capsys.readouterr().err


def test_an_environment_that_does_not_stop_after_a_failure_leaves_the_failure_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    specs = [env_worker(fake_roles.deaf), RoleSpec("role", fake_roles.raises, 1)]
    assert supervise(tmp_path, *specs, stop_timeout_s=1) == 1
    assert [entry["role"] for entry in events_of(tmp_path, "failure")] == ["role", "env-0"]
    assert capsys.readouterr().err.endswith("dreamfleet: role failed: ValueError: the role broke\n")


def test_a_save_that_outlasts_its_time_is_named_with_the_time_it_had(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    specs = [RoleSpec("saver", fake_roles.deaf, 0, saves=True), RoleSpec("role", fake_roles.finishes, 1)]
    assert supervise(tmp_path, *specs, stop_timeout_s=10, save_timeout_s=1) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"saver did not stop within [12]\.\d s and was killed, .*: increase run\.save_timeout_s", line)


@pytest.mark.parametrize("failing", [fake_roles.raises, fake_roles.raises_when_asked_to_stop])
def test_a_failure_leaves_no_time_for_a_last_save(tmp_path: Path, failing: Callable[[], object]) -> None:
    """Whether it is the reason for the stop, or happens during a clean one."""
    specs = [
        RoleSpec("saver", fake_roles.deaf, 0, saves=True),
        RoleSpec("role", failing, 0),
        RoleSpec("finishes", fake_roles.finishes, 1),
    ]
    started = time.monotonic()
    assert supervise(tmp_path, *specs, stop_timeout_s=1, save_timeout_s=100) == 1
    assert time.monotonic() - started < 10


def test_a_thread_that_ignores_stop_does_not_hold_up_the_end(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    ignoring = fake_roles.IgnoresStop()
    specs = [RoleSpec("deaf", ignoring, thread=True), RoleSpec("role", fake_roles.finishes)]
    assert supervise(tmp_path, *specs, stop_timeout_s=0.5) == 1
    assert re.search(r"dreamfleet: deaf did not stop within [01]\.\d s and was left behind", capsys.readouterr().err)
    ignoring.release()


def test_a_role_that_ended_but_hangs_at_exit_is_killed_without_blame(tmp_path: Path) -> None:
    specs = [RoleSpec("hangs", fake_roles.hangs_at_exit, 0), RoleSpec("role", fake_roles.finishes, 1)]
    assert supervise(tmp_path, *specs, stop_timeout_s=2) == 0
    assert [entry["role"] for entry in events_of(tmp_path, "kill")] == ["hangs"]


def test_a_suspended_role_is_killed_in_time(tmp_path: Path) -> None:
    with OutsideFleet(tmp_path, "idle", "idle", stop_timeout_s=2) as fleet:
        psutil.Process(fleet.pids["idle_0"]).suspend()
        fleet.signal(signal.SIGTERM)
        assert fleet.wait(5)[0] == 130
        fleet.expect_nothing_left()
