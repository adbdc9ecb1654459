"""Compares runs of `run.script=single`: everything that does not tell of time or of the machine must be equal."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.snapshot import Snapshots

OF_TIME = ("time", "fps/", "timer/", "wait/", "usage/", "env/step_ms/")
OF_DISK = ("replay/disk_gb", "limiter/insert_wait_s", "limiter/sample_wait_s")


def arrays_of(run: Path, part: str) -> dict[str, np.ndarray]:
    folder = Snapshots(run).latest()
    assert folder is not None
    return load_arrays(folder / f"{part}.safetensors")


def digest(run: Path, part: str = "agent") -> str:
    """Of one part of the newest snapshot: names, types, shapes and every bit."""
    found = hashlib.sha256()
    for key, value in sorted(arrays_of(run, part).items()):
        found.update(f"{key} {value.dtype} {value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith((*OF_TIME, *OF_DISK))} for line in lines]


def metrics_at(run: Path, every: int) -> list[dict[str, Any]]:
    """The rows at fixed steps: a run that is stopped has one more, of its last steps."""
    return [row for row in rows(run, "metrics.jsonl") if row["step"] % every == 0]


def updates(run: Path) -> int:
    return int(Snapshots(run).manifest()["updates"])


def expect_equal(one: Path, other: Path, every: int) -> None:
    for part in ("agent", "limiter", "logger", "single"):
        assert digest(one, part) == digest(other, part), part
    assert rows(one, "episodes.jsonl") == rows(other, "episodes.jsonl")
    assert metrics_at(one, every)
    assert metrics_at(one, every) == metrics_at(other, every)
