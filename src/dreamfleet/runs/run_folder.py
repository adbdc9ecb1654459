"""The run folder on disk: where everything of a run lies, and the files the supervisor itself writes."""

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
    """Creates the folder, or opens one that exists, and a private folder for sockets that lives as long as this object.

    Until it is closed, nobody else can open the folder: two runs would write over each other's files.
    Sockets lie elsewhere because a run folder's path may be longer than a socket's path can be, and on a file system
    that has no sockets.
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
        """Where the role's threads stood when it stalled."""
        return self.logs / f"{role}.stacks.txt"

    def write_event(self, role: str, event: str, detail: Mapping[str, Any]) -> None:
        line = encode({"time": time.time(), "role": role, "event": event, "detail": detail})
        with self._events.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            # One write that appends: a reader never sees half a line, unless a full disk took no more.
            if file.write(line) != len(line):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._events))

    def write_status(self, status: RunStatus) -> None:
        atomic_write(self.path / STATUS_FILE, encode(status.given()), synced=False)

    def write_fleet(self, fleet: Mapping[str, Any]) -> None:
        atomic_write(self.path / "fleet.json", json.dumps(fleet, indent=2).encode() + b"\n", synced=False)


def is_in_use(path: Path) -> bool:
    """Whether another run holds the folder. Changes nothing there."""
    try:
        with (path / ".lock").open("rb") as file:
            return not try_lock(file, shared=True)
    except OSError:  # such as a folder without the file
        return False


def _lock(path: Path) -> BinaryIO:
    """Takes the folder for this process, until the file is closed."""
    file = (path / ".lock").open("ab+")
    try:
        if not try_lock(file):
            file.seek(0)
            owner = file.read(32).decode(errors="replace")
            raise RunFolderError(
                f"the run folder {path} is in use by another run (process {owner}): "
                "wait for its end, or choose another one with --run-dir"
            )
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
    except BaseException:
        file.close()
        raise
    return file
