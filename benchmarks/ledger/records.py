"""The record of a finished run: its episodes, the course of its metrics, its configuration, and its machine."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.commands.plot.curves import Curve, frames_per_step, read_rows, without_undone
from dreamfleet.commands.reproduce.command import METRIC, device_share
from dreamfleet.commands.reproduce.scores import score_at
from dreamfleet.config.load import load_config
from dreamfleet.core.errors import BadInput
from dreamfleet.core.files.disk import atomic_write
from ledger.runs import Run

POINTS = 40  # of the course of each metric
EPISODE_KEYS = ("step", "time", "return", "length")
MAX_BYTES = 16 * 2**20  # of a file of records, unpacked four times that
Record = dict[str, Any]


class RefusedRecord(BadInput):
    """A record that must not enter the results."""


def make_record(run: Run, folder: Path, seconds: float, at_once: int, commit: str) -> Record:
    """Return the record of the run that reached its budget in `folder`."""
    config = load_config(folder / "config.yaml")
    rows = [row for row in read_rows(folder / "episodes.jsonl") if row.get("mode") == "train"]
    episodes = without_undone([row for row in rows if all(key in row for key in EPISODE_KEYS)])
    metrics = without_undone(read_rows(folder / "metrics.jsonl"))
    record = {
        "name": run.name,
        **{key: getattr(run, key) for key in ("suite", "task", "size", "seed", "env", "frames", "steps")},
        "command": ["dreamfleet", "train", *run.command],
        "commit": commit,
        "machine": describe_machine(),
        "at_once": at_once,
        "minutes": round(seconds / 60, 2),
        "updates_per_s": updates_per_s(metrics),
        "device_share": device_share(folder),
        "frames_per_step": frames_per_step(config),
        "episodes": {key: [row[key] for row in episodes] for key in EPISODE_KEYS},
        "metrics": course(metrics),
        "config": (folder / "config.yaml").read_text(),
    }
    record["score"] = score_of(record)
    return seal(record)


def score_of(record: Mapping[str, Any]) -> float:
    """Return the mean return in the last tenth of the frames, or the last one if none has ended in it."""
    return score_at([curve_of(record)], record["frames"], [True]).mean


def curve_of(record: Mapping[str, Any]) -> Curve:
    episodes = record["episodes"]
    xs = np.asarray(episodes["step"], float) * record["frames_per_step"]
    return Curve(record["env"], METRIC, xs, np.asarray(episodes["return"], float))


def updates_per_s(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the rate of updates in the process that was observed longest; None of an agent that does not measure it.

    An interrupted process ends without a row, so only what lies between two rows of one process counts.
    """
    updates = {row["step"]: row["train/opt/updates"] for row in metrics if "train/opt/updates" in row}
    timed = [row for row in metrics if "device/busy_s" in row and row["step"] in updates]
    spans = [
        (_passed_s(rows[-1]) - _passed_s(rows[0]), updates[rows[-1]["step"]] - updates[rows[0]["step"]])
        for rows in _processes(timed)
    ]
    if timed and not any(passed for passed, _ in spans):  # one row: the first process starts without updates
        spans = [(_passed_s(timed[0]), updates[timed[0]["step"]])]
    passed, made = max(spans, default=(0.0, 0.0))
    return round(made / passed, 2) if passed else None


def _passed_s(row: Mapping[str, Any]) -> float:
    """The seconds since the first update of the row's process."""
    return float(row["device/busy_s"] + row["device/idle_s"])


def _processes(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield the rows of each process: its totals begin at 0."""
    begin = 0
    for number in range(1, len(rows) + 1):
        if number == len(rows) or _passed_s(rows[number]) < _passed_s(rows[number - 1]):
            yield rows[begin:number]
            begin = number


def course(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """Return each metric of training and of the fleet as `POINTS` pairs of step and value at most, with the last."""
    values: dict[str, list[list[float]]] = {}
    for row in metrics:
        for key, value in row.items():
            if key not in ("step", "time") and isinstance(value, int | float) and math.isfinite(value):
                values.setdefault(key, []).append([row["step"], float(f"{value:.5g}")])
    return {key: _thin(points) for key, points in values.items()}


def _thin(points: list[list[float]]) -> list[list[float]]:
    kept = np.unique(np.linspace(0, len(points) - 1, min(POINTS, len(points))).round().astype(int))
    return [points[index] for index in kept]


def describe_machine() -> str:
    gpus = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    parts = [*(f"1x {name}" if len(gpus) == 1 else name for name in gpus), f"{os.cpu_count()} cores"]
    return ", ".join([*parts, f"JAX {metadata.version('jax')}", f"Python {platform.python_version()}"])


def current_commit(folder: Path) -> str:
    commit = _output("git", "-C", str(folder), "rev-parse", "HEAD")
    if not commit:
        raise BadInput("the commit is unknown outside a checkout: pass --commit")
    if _output("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"):
        raise BadInput("the checkout has uncommitted changes: commit them, or pass --commit")
    return commit


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    except OSError:
        return ""


def seal(record: Record) -> Record:
    return {**record, "sha256": _checksum(record)}


def _checksum(record: Mapping[str, Any]) -> str:
    text = json.dumps({key: value for key, value in record.items() if key != "sha256"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_records(path: Path, records: Sequence[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode(), mtime=0)
    if len(data) > MAX_BYTES:
        raise BadInput(f"{path} would have {len(data) >> 20} MiB, {MAX_BYTES >> 20} are allowed: collect more often")
    atomic_write(path, data, synced=False)


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a file. Raises `RefusedRecord` for a file that is cut off or holds something else."""
    try:
        with gzip.open(path) as file:
            lines = file.read(4 * MAX_BYTES).splitlines()
        records = [json.loads(line) for line in lines]
    except (OSError, EOFError, ValueError) as error:
        raise RefusedRecord(f"{path} is damaged: {error}") from error
    yield from records


def check_record(record: Any, runs: Mapping[str, Run]) -> None:
    """Raise `RefusedRecord` unless this is a whole record of one of these runs."""
    name = record.get("name") if isinstance(record, dict) else None
    if name not in runs:
        raise RefusedRecord(f"a record of {name!r}, which is not in the list of runs")
    if record.get("sha256") != _checksum(record):
        raise RefusedRecord(f"{name} is damaged: its checksum differs")
    run = runs[name]
    for key in ("env", "frames", "steps"):
        if record[key] != getattr(run, key):
            raise RefusedRecord(f"{name} was made with {key}={record[key]}, the list has {getattr(run, key)}")
    if list(run.command) != record["command"][2:]:
        raise RefusedRecord(f"{name} was made with another command than the list has: {' '.join(record['command'])}")
    if not math.isclose(record["score"], score_of(record)):
        raise RefusedRecord(f"{name} says {record['score']}, its episodes say {score_of(record)}")
