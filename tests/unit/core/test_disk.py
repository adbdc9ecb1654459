"""Folders and files whose names the disk is to know."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dreamfleet.core.disk import make_synced, sync, write_synced


def test_a_folder_is_made_below_one_that_can_be_written_to_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Path, *args: Any) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *args)

    monkeypatch.setattr("dreamfleet.core.disk.os.open", refuse)
    make_synced(tmp_path / "run" / "logs")
    assert (tmp_path / "run" / "logs").is_dir()


def test_a_file_system_that_cannot_sync_folders_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = os.fsync

    def refuse(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        synced(descriptor)

    monkeypatch.setattr("dreamfleet.core.disk.os.fsync", refuse)
    make_synced(tmp_path / "run")
    write_synced(tmp_path / "run" / "file", b"data")
    assert (tmp_path / "run" / "file").read_bytes() == b"data"


def test_a_file_that_cannot_be_synced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    (tmp_path / "file").write_bytes(b"data")
    monkeypatch.setattr("dreamfleet.core.disk.os.fsync", refuse)
    with pytest.raises(OSError, match="Invalid argument"):
        sync(tmp_path / "file")
