"""Check whether a run has reached its budget or goal, from its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.manifest import read_manifest
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.transport.codec import unpack_json


def finished(run: Path, args: FleetArgs) -> str:
    """Return what the latest snapshot has reached and how to continue, or an empty text if the run is unfinished.

    A duration is never reached, because it applies to each command separately.
    """
    snapshot = Snapshots(run).latest()
    if snapshot is None:
        return ""
    step = int(read_manifest(snapshot)["step"])
    if step >= args.steps:
        more = f"increase it, such as run.steps={2 * args.steps}"
        return f"it is at step {step}, and run.steps={args.steps}: to continue, {more}"
    recent = _last_returns(snapshot)[-args.goal_episodes :]
    if args.goal is not None and len(recent) == args.goal_episodes and np.mean(recent) >= args.goal:
        mean = f"the mean return of {len(recent)} episodes is {np.mean(recent):g}"
        return f"{mean}, and run.goal={args.goal:g}: to continue, increase it"
    return ""


def _last_returns(snapshot: Path) -> list[float]:
    """Return the returns that the logger compares with the goal."""
    part = snapshot / "logger.safetensors"
    arrays = load_arrays(part) if part.exists() else {}
    return list(unpack_json(arrays["json"])["towards_goal"]) if "json" in arrays else []
