"""Snapshots whose files are there and whole, for tests that care about neither agent nor replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.checkpoint.arrays import save_arrays
from dreamfleet.checkpoint.schema import PARTS
from dreamfleet.checkpoint.snapshot import Retention, Snapshots


def write_parts(folder: Path, *parts: str, value: int = 0) -> None:
    """All parts, if none are named."""
    for part in parts or PARTS:
        for name in PARTS[part]:
            save_arrays(folder / name, {"value": np.full(3, value)})


def commit(run: Path, step: int, retention: Retention | None = None, **facts: Any) -> Path:
    snapshots = Snapshots(run, retention)
    write_parts(snapshots.begin(step), value=step)
    return snapshots.commit(step, {"updates": 0, **facts})
