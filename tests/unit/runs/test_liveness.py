"""Whether a run lives: one answer for all that ask."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dreamfleet.commands.snapshots import take_snapshot
from dreamfleet.core.errors import BadInput
from dreamfleet.runs.liveness import SILENT_AFTER_S, Liveness, is_live, look
from dreamfleet.ui.run_reader import read_run

WRITTEN = 1000.0
HERE = socket.gethostname()


@pytest.fixture(scope="module")
def gone() -> int:
    """The number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait(30)
    return child.pid


def make_run(run: Path, state: str = "running", pid: int | None = None, host: str | None = HERE) -> Path:
    (run / "config.yaml").write_text("seed: 0\n")
    (run / "status.json").write_text(json.dumps({"state": state, "time": WRITTEN}))
    os.utime(run / "status.json", (WRITTEN, WRITTEN))
    if pid is not None:
        (run / ".lock").write_text(str(pid))
    if host:
        (run / "fleet.json").write_text(json.dumps({"host": host}))
    return run


@pytest.mark.parametrize("age_s", [1.0, 12.0, 14.9, 60.0])
@pytest.mark.parametrize("there", [True, False])
def test_everybody_says_the_same_of_a_run_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: int, age_s: float, there: bool
) -> None:
    """After 12 s of silence `status` said that a run had died, and `eval` and `snapshot` that it was at work."""
    monkeypatch.setattr("time.time", lambda: WRITTEN + age_s)
    run = make_run(tmp_path, pid=os.getpid() if there else gone)
    assert is_live(run) is there
    assert (read_run(run).state != "died") is there
    if not there:
        with pytest.raises(BadInput, match="nothing is at work"):
            take_snapshot(run, 0.0)


@pytest.mark.parametrize(
    ("pid", "host", "age_s", "expected"),
    [
        ("own", HERE, 1, Liveness.LIVE),
        ("own", HERE, 60, Liveness.SILENT),
        ("own", None, 60, Liveness.SILENT),
        ("gone", HERE, 1, Liveness.DIED),
        ("gone", None, 1, Liveness.LIVE),  # the number may be one of another machine
        ("gone", None, 60, Liveness.DIED),
        ("gone", "elsewhere", 1, Liveness.LIVE),
        ("gone", "elsewhere", 60, Liveness.UNREACHABLE),
        (None, None, 1, Liveness.LIVE),
        (None, None, 60, Liveness.DIED),
        (None, "elsewhere", 60, Liveness.UNREACHABLE),
    ],
)
def test_a_run_lives_by_its_status_its_process_and_its_machine(
    tmp_path: Path, gone: int, pid: str | None, host: str | None, age_s: float, expected: Liveness
) -> None:
    run = make_run(tmp_path, pid={"own": os.getpid(), "gone": gone, None: None}[pid], host=host)
    assert look(run, WRITTEN + age_s)[1] is expected
    assert expected.lives is (expected in (Liveness.LIVE, Liveness.SILENT))


def test_silence_begins_at_one_limit(tmp_path: Path) -> None:
    run = make_run(tmp_path, pid=os.getpid())
    assert look(run, WRITTEN + SILENT_AFTER_S - 0.1)[1] is Liveness.LIVE
    assert look(run, WRITTEN + SILENT_AFTER_S)[1] is Liveness.SILENT


def test_a_silent_run_whose_number_another_process_has_now_died(tmp_path: Path) -> None:
    """As after a restart of a container, where numbers begin at 1 again."""
    run = make_run(tmp_path, pid=os.getpid())
    before = psutil.Process().create_time() - 3600.0
    os.utime(run / ".lock", (before, before))
    assert look(run, WRITTEN + 1)[1] is Liveness.LIVE
    assert look(run, WRITTEN + 60)[1] is Liveness.DIED


@pytest.mark.parametrize("state", ["done", "failed"])
def test_a_run_that_has_ended_does_not_live_however_fresh_its_status(tmp_path: Path, state: str) -> None:
    run = make_run(tmp_path, state, os.getpid())
    assert look(run, WRITTEN)[1] is Liveness.ENDED
    assert not is_live(run)


@pytest.mark.parametrize("status", [None, "", "[]", '{"state": "of a later version"}'])
def test_a_folder_without_a_status_that_can_be_read_holds_no_live_run(tmp_path: Path, status: str | None) -> None:
    if status is not None:
        (tmp_path / "status.json").write_text(status)
    assert look(tmp_path) == (None, Liveness.NONE)
    assert not is_live(tmp_path)
