"""The private folder of a fleet's local sockets, and the removal of folders left behind by killed fleets."""

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
OWNER_FILE = ".owner"  # locked while its owner is alive
# Socket paths are limited to 107 bytes. This leaves space for the name.
_PARENT_BYTES = 60


class SocketFolder:
    """A folder with a path that is short enough for sockets. It exists as long as this object.

    Its owner file is locked before it gets its name, and the system unlocks it when the owner ends for any reason. A
    folder with an unlocked owner file is therefore a leftover.
    """

    def __init__(self) -> None:
        self.path = _make_folder()
        try:
            self._owner = _own(self.path)
        except OSError as error:
            shutil.rmtree(self.path, ignore_errors=True)
            raise RunFolderError(
                f"cannot write the socket folder {self.path}: {error.strerror}: check its disk"
            ) from error

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
    """Remove the socket folders of this user whose owners were killed with all of their roles.

    Only sockets and the owner file are removed. A folder with other files is kept.
    """
    for parent in _parents():
        for folder in parent.glob(f"{PREFIX}*"):
            # Another process may remove the same folder.
            with contextlib.suppress(OSError), _left_over(folder) as left_over:
                if left_over:
                    _remove(folder)


def _parents() -> list[Path]:
    """Return the possible parent folders, in order of preference."""
    named = (os.environ.get("XDG_RUNTIME_DIR"), "/tmp", tempfile.gettempdir())
    return [Path(parent) for parent in dict.fromkeys(named) if parent and len(os.fsencode(parent)) <= _PARENT_BYTES]


def _make_folder() -> Path:
    for parent in _parents():
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))  # mkdtemp makes it 0700
    raise RunFolderError("cannot create a folder for sockets: set XDG_RUNTIME_DIR to a short, writable path")


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
    """Yield whether the owner of this user's folder has ended. The lock keeps others from removing it meanwhile."""
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
