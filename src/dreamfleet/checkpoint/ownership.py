"""Who may commit a snapshot: the one that began it, and in the learner's folder nobody but the learner.

A pending snapshot names who began it and a token that nobody else knows. A role adds its part to a snapshot of the
token that it was given, or, in a run folder of its own on another machine, begins one there for its part alone.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from dreamfleet.core.errors import CheckpointError
from dreamfleet.core.files.bounded import read_json
from dreamfleet.core.files.disk import atomic_write, make_synced

BEGUN = "begun.json"
OWNER = "learner.json"
MAX_BYTES = 1 << 12
LEARNER = "learner"


def mark_begun(pending: Path, by: str, token: str) -> None:
    (pending / BEGUN).write_text(json.dumps({"by": by, "token": token}))


def unmark(pending: Path) -> None:
    (pending / BEGUN).unlink(missing_ok=True)


def is_begun(pending: Path, token: str, by: str | None = None) -> bool:
    """Whether the pending snapshot is the one of this token, and begun by this role if one is named."""
    found = _read(pending / BEGUN)
    return bool(token) and found.get("token") == token and by in (None, found.get("by"))


def is_begun_by(pending: Path, by: str) -> bool:
    return _read(pending / BEGUN).get("by") == by


def claim(folder: Path) -> None:
    """Makes a folder of snapshots the learner's. A copy of it elsewhere is nobody's yet."""
    try:
        make_synced(folder)
        if not is_claimed(folder):
            atomic_write(folder / OWNER, json.dumps({"inode": folder.stat().st_ino}).encode(), synced=True)
    except OSError as error:
        raise CheckpointError(f"cannot write to {folder}: {error}: free some space there") from error


def release(folder: Path) -> None:
    """For a replay in a folder that the learner has left."""
    try:
        (folder / OWNER).unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot delete {folder / OWNER}: {error}: delete it by hand") from error


def is_claimed(folder: Path) -> bool:
    """The folder's inode is the same from every machine that shares it, and another one in a copy."""
    with contextlib.suppress(OSError):
        return _read(folder / OWNER).get("inode") == folder.stat().st_ino
    return False


def _read(path: Path) -> dict[str, object]:
    try:
        found = read_json(path, MAX_BYTES)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
