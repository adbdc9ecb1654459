"""Folders and files whose names the disk is to know."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dreamfleet.core.files.disk import atomic_file, atomic_write, make_synced, sync


def test_a_folder_is_made_below_one_that_can_be_written_to_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Path, *args: Any) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *args)

    monkeypatch.setattr("dreamfleet.core.files.disk.os.open", refuse)
    make_synced(tmp_path / "run" / "logs")
    assert (tmp_path / "run" / "logs").is_dir()


def test_a_file_system_that_cannot_sync_folders_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = os.fsync

    def refuse(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        synced(descriptor)

    monkeypatch.setattr("dreamfleet.core.files.disk.os.fsync", refuse)
    make_synced(tmp_path / "run")
    atomic_write(tmp_path / "run" / "file", b"data", synced=True)
    assert (tmp_path / "run" / "file").read_bytes() == b"data"


def test_a_file_that_cannot_be_synced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    (tmp_path / "file").write_bytes(b"data")
    monkeypatch.setattr("dreamfleet.core.files.disk.os.fsync", refuse)
    with pytest.raises(OSError, match="Invalid argument"):
        sync(tmp_path / "file")


@pytest.mark.parametrize("synced", [False, True])
def test_a_file_that_fails_half_way_leaves_the_one_before(tmp_path: Path, synced: bool) -> None:
    path = tmp_path / "file"
    atomic_write(path, b"before", synced=synced)
    with pytest.raises(OSError, match="disk full"), atomic_file(path, synced=synced) as temporary:
        temporary.write_bytes(b"aft")
        raise OSError(errno.ENOSPC, "disk full")
    assert path.read_bytes() == b"before"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_synced_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def note(descriptor: int) -> None:
        order.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, (tmp_path / "file").exists()))

    monkeypatch.setattr("dreamfleet.core.files.disk.os.fsync", note)
    atomic_write(tmp_path / "file", b"data", synced=True)
    assert order == [("file.tmp", False), (tmp_path.name, True)]
    order.clear()
    atomic_write(tmp_path / "file", b"data", synced=False)
    assert order == []
