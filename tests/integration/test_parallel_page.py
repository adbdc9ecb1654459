"""What docs/parallel.md shows runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dreamfleet.checkpoint.snapshot import Snapshots
from support.cli_fleet import environment
from support.documents import ROOT, read_document

PAGE = ROOT / "docs" / "parallel.md"


def run(folder: Path, *command: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**environment(), "PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), f"{ended.stdout}\n{ended.stderr}"


def write_files(folder: Path) -> None:
    for name, text in read_document(PAGE).files.items():
        (folder / name).write_text(text)


def expect_finished(run_dir: Path) -> None:
    manifest = Snapshots(run_dir).manifest()
    assert 2000 <= manifest["step"] < 2000 + 2
    assert manifest["updates"] > 0
    assert (run_dir / "episodes.jsonl").stat().st_size > 0


@pytest.mark.parametrize("script", ["whole.py", "by_threads.py"])
def test_a_script_trains_to_its_end(script: str, tmp_path: Path) -> None:
    write_files(tmp_path)
    run(tmp_path, sys.executable, script)
    expect_finished(tmp_path / "runs" / "parallel")


def test_roles_started_from_a_shell_train_to_their_end(tmp_path: Path) -> None:
    write_files(tmp_path)
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    run(tmp_path, "bash", "-e", "-c", commands)
    expect_finished(tmp_path / "runs" / "parallel")


def test_the_call_that_makes_keys_runs(tmp_path: Path) -> None:
    (script,) = read_document(PAGE).scripts
    run(tmp_path, sys.executable, "-c", script)
    assert (tmp_path / "runs" / "parallel" / "keys" / "worker.json").exists()


def test_every_file_of_the_page_is_run() -> None:
    assert list(read_document(PAGE).files) == ["fleet.py", "whole.py", "by_threads.py", "role.py"]
