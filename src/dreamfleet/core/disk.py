"""What has to be on disk before something else may count on it."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Waits until the disk has a file, or what a folder names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
