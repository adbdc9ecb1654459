"""What has to be on disk before something else may count on it, and whether it can get there."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def sync(path: Path) -> None:
    """Waits until the disk has a file, or what a folder names, unless its file system cannot sync folders."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: Path, *, synced: bool) -> Iterator[Path]:
    """Yield a name beside `path` to write to. The file gets its own name when the block ends without an error.

    A reader therefore sees the whole file, the one before it or none. With `synced` this also holds after a loss of
    power, and the file is on disk when the block has ended; without it, the caller syncs later or can lose the file.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        yield temporary
        if synced:
            sync(temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if synced:
        sync(path.parent)


def atomic_write(path: Path, data: bytes, *, synced: bool) -> None:
    """Write a file with the guarantees of `atomic_file`."""
    with atomic_file(path, synced=synced) as temporary:
        temporary.write_bytes(data)


def make_synced(folder: Path) -> None:
    """Makes a folder and those above it that are missing, and waits until the disk knows them by their names."""
    missing = [path for path in folder.parents if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*reversed(missing), folder]:  # the folder itself also if it was there: nobody may have waited for it
        with contextlib.suppress(PermissionError):  # a folder for everybody may be written to and not read
            sync(path.parent)


def writable_folder(name: str) -> Path:
    """Return the folder with `~` expanded, which need not exist yet.

    Raises:
        OSError: Neither it nor, if it is missing, the folder to create it in can be written.
    """
    try:
        folder = Path(name).expanduser().absolute()
    except RuntimeError as error:  # HOME is not set, and the system does not know the user
        raise OSError("there is no home folder, since HOME is not set") from error
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:  # which names the file
        raise OSError(f"{error.strerror}: {existing}") from error
    return folder
