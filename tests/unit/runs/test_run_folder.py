"""The run folder: what it creates, and what it refuses."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path

import pytest

from dreamfleet.core.errors import RunFolderError
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.runs.status import RunState, RunStatus


def test_it_creates_its_folders_and_removes_only_the_sockets(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "a" / "run") as folder:
        (folder.sockets / "replay").touch()
        assert stat.S_IMODE(folder.sockets.stat().st_mode) == 0o700
        assert stat.S_IMODE(folder.keys.stat().st_mode) == 0o700
        assert folder.log_path("env_0") == tmp_path / "a" / "run" / "logs" / "env_0.log"
    assert not folder.sockets.exists()
    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "events.jsonl", "keys", "logs"]


def test_events_of_a_second_run_follow_those_of_the_first(tmp_path: Path) -> None:
    for role in ("first", "second"):
        with RunFolder(tmp_path) as folder:
            folder.write_event(role, "start", {"pid": 1})
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [entry.pop("time") > 0 for entry in events] == [True, True]
    assert events == [{"role": role, "event": "start", "detail": {"pid": 1}} for role in ("first", "second")]


def test_status_is_replaced_as_a_whole(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.write_status(RunStatus(state=RunState.RUNNING))
        with (tmp_path / "status.json").open() as reader:
            folder.write_status(RunStatus(state=RunState.DONE))
            assert json.load(reader) == {"state": "running"}
        folder.write_fleet({"addresses": {}})
    assert json.loads((tmp_path / "status.json").read_text()) == {"state": "done"}
    assert json.loads((tmp_path / "fleet.json").read_text()) == {"addresses": {}}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [".lock"]


@pytest.mark.parametrize("path", ["file/run", "file", "/proc/run"])
def test_a_folder_that_cannot_be_written_is_named_with_a_way_out(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: pytest.fail("made a folder for sockets"))
    with pytest.raises(RunFolderError, match=r"cannot write the run folder .*: choose another one with --run-dir"):
        RunFolder(tmp_path / path)


def test_a_folder_in_use_is_refused_until_its_run_has_ended(tmp_path: Path) -> None:
    with RunFolder(tmp_path), pytest.raises(RunFolderError) as refused:
        RunFolder(tmp_path)
    assert str(refused.value) == (
        f"the run folder {tmp_path} is in use by another run (process {os.getpid()}): "
        "wait until it ends, or choose another one with --run-dir"
    )
    with RunFolder(tmp_path):
        pass


def test_a_start_without_a_folder_for_sockets_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> str:
        raise OSError("no space")

    with monkeypatch.context() as patch, pytest.raises(RunFolderError, match="folder for sockets"):
        patch.setattr(tempfile, "mkdtemp", full)
        RunFolder(tmp_path)
    with RunFolder(tmp_path):
        pass


def test_socket_paths_stay_short_whatever_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with RunFolder(tmp_path / "run") as folder:
        assert len(str(folder.sockets)) < 80


def test_a_runtime_folder_that_is_gone_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    with RunFolder(tmp_path) as folder:
        assert folder.sockets.is_dir()
