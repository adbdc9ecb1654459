"""Locks on files, which the system releases when the file is closed or its process ends, however that happens."""

from __future__ import annotations

import fcntl
from typing import IO


def try_lock(file: IO[bytes] | int, shared: bool = False) -> bool:
    """Return whether the lock was free, and is held now. Several processes may hold a shared one."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
