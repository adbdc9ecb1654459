"""Read the configuration and the latest agent of a run folder, during or after training."""

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
    """The arrays for `Agent.load`, and the step of the run when they were saved."""

    step: int
    arrays: dict[str, np.ndarray]


def read_config(run: Path) -> Config:
    saved = run / CONFIG_FILE
    if not saved.is_file():
        raise BadInput(f"{run} is not a run folder: it has no {CONFIG_FILE}")
    return load_config(saved)


def read_agent(run: Path) -> SavedAgent:
    """Return the agent of the latest complete snapshot.

    A live run may delete a snapshot while it is read. The next one already exists then.
    """
    snapshots = Snapshots(run)
    for attempt in range(TRIES):
        folder = snapshots.latest()
        if folder is None:
            raise BadInput(
                f"{run} has no snapshot yet: wait for the first one (run.save_every is the interval in seconds)"
            )
        try:
            manifest = read_manifest(folder)
            if not (folder / "agent.safetensors").exists() and manifest.get("imported"):
                raise BadInput(f"{run} has imported steps but no agent yet: train the run first")
            return SavedAgent(int(manifest["step"]), load_arrays(folder / "agent.safetensors"))
        except (OSError, CheckpointError):
            if attempt == TRIES - 1 or (folder.is_dir() and snapshots.latest() == folder):
                raise
    raise AssertionError("the last attempt returns or raises")
