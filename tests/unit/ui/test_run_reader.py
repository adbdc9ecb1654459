"""How a run stands, read from its folder alone."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dreamfleet.commands.status import show_status, watch_status
from dreamfleet.core.errors import RunFolderError
from dreamfleet.runs.tail import tail_rows
from dreamfleet.ui.run_reader import read_run
from support.statuses import make_status


def make_folder(folder: Path, status: dict[str, Any] | None, pid: int | str = "", host: str | None = None) -> Path:
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / ".lock").write_text(str(pid))
    if status:
        (folder / "status.json").write_text(json.dumps(status))
    if host:
        (folder / "fleet.json").write_text(json.dumps({"host": host}))
    return folder


def gone_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(30)
    return child.pid


def test_a_running_and_an_ended_run_are_what_they_say(tmp_path: Path) -> None:
    run = make_folder(tmp_path, make_status(), os.getpid())
    assert (read_run(run, now=1001.0).state, read_run(run, now=1001.0).folder) == ("running", str(tmp_path))
    (run / "status.json").write_text(json.dumps(make_status("done")))
    assert read_run(run, now=10**9).state == "done"


def test_a_silent_run_has_died_if_its_process_is_gone(tmp_path: Path) -> None:
    found = read_run(make_folder(tmp_path, make_status(), gone_pid()), now=1060.0)
    assert found.state == "died"
    assert found.ended
    assert f"dreamfleet train --run-dir {tmp_path}" in found.reason


def test_a_silent_run_whose_process_is_there_is_silent(tmp_path: Path) -> None:
    found = read_run(make_folder(tmp_path, make_status(), os.getpid()), now=1060.0)
    assert (found.state, found.reason) == ("silent", "no status for 1m 00s, but its process exists")


def test_of_a_run_on_another_machine_nobody_knows_whether_it_lives(tmp_path: Path) -> None:
    found = read_run(make_folder(tmp_path, make_status(), gone_pid(), host="elsewhere"), now=1060.0)
    assert (found.state, found.reason) == ("silent", "no status for 1m 00s from its machine")


def test_a_folder_that_holds_no_run_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"there is no run folder .*nothing"):
        read_run(tmp_path / "nothing")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        read_run(tmp_path)
    with pytest.raises(RunFolderError, match="has no status yet"):
        read_run(make_folder(tmp_path, None))


def test_the_view_of_an_ended_run_is_printed_once(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=80)
    show_status(make_folder(tmp_path, make_status("done")), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "12,000 of 20,000 steps" in console.file.getvalue()


def test_watching_ends_with_the_run(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    watch_status(make_folder(tmp_path, make_status("failed")), console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().startswith("failed: step 12000/20000")
    assert console.file.getvalue().count("\n") == 1


def test_watching_a_run_can_be_stopped(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    watch_status(make_folder(tmp_path, {**make_status(), "time": 10**12}), console, stop)
    assert isinstance(console.file, io.StringIO)
    assert "12,000 of 20,000 steps" in console.file.getvalue()


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(b'{"n": %d}\n' % number for number in range(10_000)))
    assert tail_rows(path, 25) == [{"n": 9998}, {"n": 9999}]
    assert len(tail_rows(path, 10**9)) == 10_000


def test_lines_cut_by_a_crash_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n": 1}\n[2]\n{"n": 3}\n{"n": ')
    assert tail_rows(path) == [{"n": 1}, {"n": 3}]
    assert tail_rows(tmp_path / "none.jsonl") == []
