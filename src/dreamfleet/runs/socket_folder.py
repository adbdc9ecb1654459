"""The private folder of a fleet's local sockets, and the removal of those that killed fleets left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from dreamfleet.core.errors import RunFolderError
from dreamfleet.core.files.lock import try_lock

PREFIX = "dreamfleet-"
OWNER_FILE = ".owner"  # locked for as long as its owner lives
# A socket's path may have 107 bytes; this leaves room for its name.
_PARENT_BYTES = 60


class SocketFolder:
    """A folder whose path is short enough for a socket's; it lives as long as this object.

    Its owner file is locked before it gets its name, and the system unlocks it when the owner ends, however that
    happens. So a folder whose owner file is there and not locked is left over.
    """

    def __init__(self) -> None:
        self.path = _make_folder()
        try:
            self._owner = _own(self.path)
        except OSError as error:
            shutil.rmtree(self.path, ignore_errors=True)
            raise RunFolderError(f"cannot write the folder for sockets {self.path}: {error.strerror}") from error

    def __enter__(self) -> SocketFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()


def remove_leftovers() -> None:
    """Removes the socket folders of this user whose owners were killed together with all of their roles.

    Only sockets and the owner file are removed: a folder that holds anything else stays.
    """
    for parent in _parents():
        for folder in parent.glob(f"{PREFIX}*"):
            # Another start may remove the same one.
            with contextlib.suppress(OSError), _left_over(folder) as left_over:
                if left_over:
                    _remove(folder)


def _parents() -> list[Path]:
    """Where such folders may lie, the first choice first."""
    named = (os.environ.get("XDG_RUNTIME_DIR"), "/tmp", tempfile.gettempdir())
    return [Path(parent) for parent in dict.fromkeys(named) if parent and len(os.fsencode(parent)) <= _PARENT_BYTES]


def _make_folder() -> Path:
    for parent in _parents():
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))  # mkdtemp makes it 0700
    raise RunFolderError("cannot create a folder for sockets: set XDG_RUNTIME_DIR to a short path you can write")


def _own(folder: Path) -> BinaryIO:
    file = (folder / f"{OWNER_FILE}.new").open("xb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        Path(file.name).rename(folder / OWNER_FILE)
    except BaseException:
        file.close()
        raise
    return file


@contextlib.contextmanager
def _left_over(folder: Path) -> Iterator[bool]:
    """Whether this user's process that made the folder has ended. Nobody else can find so meanwhile."""
    found = folder.lstat()
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == os.getuid()
    if not private:
        yield False
        return
    owner = os.open(folder / OWNER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield try_lock(owner)
    finally:
        os.close(owner)


def _remove(folder: Path) -> None:
    inside = [path for path in folder.iterdir() if path.name != OWNER_FILE]
    if all(stat.S_ISSOCK(path.lstat().st_mode) for path in inside):
        for path in [*inside, folder / OWNER_FILE]:
            path.unlink()
        folder.rmdir()
