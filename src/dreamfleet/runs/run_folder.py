"""The run folder on disk: its paths, and the files that the supervisor writes."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from dreamfleet.core.encoding.strict_json import encode
from dreamfleet.core.errors import RunFolderError
from dreamfleet.core.files.disk import atomic_write, make_synced
from dreamfleet.core.files.lock import try_lock
from dreamfleet.runs.socket_folder import SocketFolder, remove_leftovers
from dreamfleet.runs.status import STATUS_FILE, RunStatus


class RunFolder:
    """A new or existing run folder, locked until it is closed, and a private folder for sockets.

    The lock prevents two runs from overwriting each other's files. Sockets are in a separate folder, because the path
    of a run folder may be too long for them, or its file system may not support them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.logs = self.path / "logs"
        self.keys = self.path / "keys"
        self._events = self.path / "events.jsonl"
        try:
            make_synced(self.logs)
            self.keys.mkdir(mode=0o700, exist_ok=True)
            self._events.touch()
            self._lock = _lock(self.path)
        except OSError as error:
            raise RunFolderError(
                f"cannot write the run folder {self.path}: {error.strerror}: choose another one with --run-dir"
            ) from error
        try:
            remove_leftovers()
            self._sockets = SocketFolder()
        except RunFolderError:
            self._lock.close()
            raise
        self.sockets = self._sockets.path

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._sockets.close()
        self._lock.close()

    def log_path(self, role: str) -> Path:
        return self.logs / f"{role}.log"

    def stacks_path(self, role: str) -> Path:
        """Return the path of the stacks of the role's threads, written when it stalls."""
        return self.logs / f"{role}.stacks.txt"

    def write_event(self, role: str, event: str, detail: Mapping[str, Any]) -> None:
        line = encode({"time": time.time(), "role": role, "event": event, "detail": detail})
        with self._events.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            # Append with a single write, so that readers never see a partial line unless the disk is full.
            if file.write(line) != len(line):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._events))

    def write_status(self, status: RunStatus) -> None:
        atomic_write(self.path / STATUS_FILE, encode(status.given()), synced=False)

    def write_fleet(self, fleet: Mapping[str, Any]) -> None:
        atomic_write(self.path / "fleet.json", json.dumps(fleet, indent=2).encode() + b"\n", synced=False)


def is_in_use(path: Path) -> bool:
    """Return whether another run uses the folder, without changing it."""
    try:
        with (path / ".lock").open("rb") as file:
            return not try_lock(file, shared=True)
    except OSError:  # for example, the file does not exist
        return False


def _lock(path: Path) -> BinaryIO:
    """Lock the folder for this process until the file is closed."""
    file = (path / ".lock").open("ab+")
    try:
        if not try_lock(file):
            file.seek(0)
            owner = file.read(32).decode(errors="replace")
            raise RunFolderError(
                f"the run folder {path} is in use by another run (process {owner}): "
                "wait until it ends, or choose another one with --run-dir"
            )
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
    except BaseException:
        file.close()
        raise
    return file
