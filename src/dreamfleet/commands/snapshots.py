"""Take a snapshot of a live run, and list the snapshots of a run."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from dreamfleet.checkpoint.requests import SnapshotRequests
from dreamfleet.checkpoint.snapshot import Retention, Snapshot, Snapshots
from dreamfleet.core.errors import BadInput, CheckpointError, DeadlineExceeded
from dreamfleet.runs.liveness import is_live
from dreamfleet.runs.saved_run import read_config

LOOK_EVERY_S = 0.1
COLUMNS = f"{'step':>12}  {'updates':>9}  {'taken':19}  {'size':>9}  {'kept as':20}  state"


def take_snapshot(run: Path, timeout_s: float) -> Path:
    """Request a snapshot from the live run in this folder, and return the snapshot's folder once it is complete."""
    read_config(run)
    if not is_live(run):
        raise BadInput(f"nothing is at work in {run}: `dreamfleet train --run-dir {run}` continues it")
    snapshots = Snapshots(run)
    requests = SnapshotRequests(snapshots.folder)
    token = requests.ask()
    deadline = time.monotonic() + timeout_s
    while (answer := requests.answered(token)) is None:
        if time.monotonic() > deadline or not is_live(run):
            requests.take_back()
            why = f"was not taken within {timeout_s:g} s" if is_live(run) else "cannot be taken, the run has ended"
            raise DeadlineExceeded(f"the snapshot {why}: `dreamfleet status {run}` says what it waits for")
        threading.Event().wait(LOOK_EVERY_S)
    if answer["error"] or not answer["snapshot"]:
        raise CheckpointError(f"no snapshot was taken: {answer['error'] or 'the run has not begun to train'}")
    return snapshots.folder / str(answer["snapshot"])


def list_snapshots(run: Path) -> list[dict[str, Any]]:
    """Return the verified snapshots, oldest first."""
    config = read_config(run).run
    found = Snapshots(run).all()
    retention = Retention(config.keep, config.keep_every, config.keep_best)
    reasons = iter(retention.reasons([snapshot.manifest for snapshot in found if snapshot.manifest]))
    return [_describe(snapshot, next(reasons) if snapshot.manifest else []) for snapshot in found]


def snapshot_table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "no snapshot yet"
    lines = [COLUMNS]
    for row in rows:
        taken = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time"])) if row["time"] else "?"
        state = (row["damage"] and f"damaged: {row['damage']}") or ("agent only" if row["agent_only"] else "complete")
        size, kept = f"{row['bytes'] / 1e6:.1f} MB", ", ".join(row["kept"]) or "-"
        lines.append(f"{row['step']:>12}  {row['updates']:>9}  {taken:19}  {size:>9}  {kept:20}  {state}")
    return "\n".join(lines)


def _describe(snapshot: Snapshot, kept: list[str]) -> dict[str, Any]:
    manifest = snapshot.manifest
    return {
        "snapshot": snapshot.folder.name,
        "step": manifest.get("step", "?"),
        "updates": manifest.get("updates", "?"),
        "time": manifest.get("time", 0.0),
        "score": manifest.get("score"),
        "bytes": sum(path.stat().st_size for path in snapshot.folder.iterdir()),
        "kept": kept,
        "agent_only": bool(manifest.get("agent_only")),
        "damage": str(snapshot.damage) if snapshot.damage else None,
    }
