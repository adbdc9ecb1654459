"""What a run folder has to offer once it is trained, or while it is: its configuration and its newest agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.manifest import read_manifest
from dreamfleet.checkpoint.snapshot import CONFIG_FILE, Snapshots
from dreamfleet.config.load import load_config
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import BadInput, CheckpointError

TRIES = 5


@dataclass(frozen=True)
class SavedAgent:
    """The arrays that `Agent.load` takes, and the step of the run at which they were saved."""

    step: int
    arrays: dict[str, np.ndarray]


def read_config(run: Path) -> Config:
    saved = run / CONFIG_FILE
    if not saved.is_file():
        raise BadInput(f"{run} is not a run folder: it has no {CONFIG_FILE}")
    return load_config(saved)


def read_agent(run: Path) -> SavedAgent:
    """The agent of the newest complete snapshot.

    A live run replaces its snapshot while we read; then the next one is there already.
    """
    snapshots = Snapshots(run)
    for attempt in range(TRIES):
        folder = snapshots.latest()
        if folder is None:
            raise BadInput(f"{run} holds no snapshot yet: wait for the first; run.save_every says how often they come")
        try:
            manifest = read_manifest(folder)
            if not (folder / "agent.safetensors").exists() and manifest.get("imported"):
                raise BadInput(f"{run} holds imported steps and no agent yet: train there first")
            return SavedAgent(int(manifest["step"]), load_arrays(folder / "agent.safetensors"))
        except (OSError, CheckpointError):
            if attempt == TRIES - 1 or (folder.is_dir() and snapshots.latest() == folder):
                raise
    raise AssertionError("the last attempt returns or raises")
