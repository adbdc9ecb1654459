"""Weights & Biases: numbers, distributions and videos. Its own variables, such as WANDB_MODE, are respected."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dreamfleet.metrics.sinks.libraries import require
from dreamfleet.metrics.values import Row, distributions, numbers, videos
from dreamfleet.metrics.video import write_mp4

PROJECT = "dreamfleet"
ID_FILE = "wandb.id"


class WandbSink:
    """A continued run goes on in the same W&B run, whose id the run folder holds."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._wandb = require("W&B", "wandb", "pip install 'dreamfleet[wandb]'")
        id_file = folder / ID_FILE
        known = id_file.read_text().strip() if id_file.exists() else None
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", folder.resolve().name),
            id=known,
            resume="allow",
            dir=str(folder),
            config=dict(settings),
            settings=self._wandb.Settings(console="off"),
        )
        id_file.write_text(f"{self._run.id}\n")
        # Steps of its own only grow, and those of a run that continues from a snapshot go back a little.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, row: Row) -> None:
        shown: dict[str, Any] = {"step": int(row["step"]), **numbers(row)}
        shown.update({name: self._wandb.Histogram(values) for name, values in distributions(row).items()})
        with tempfile.TemporaryDirectory() as folder:
            for number, (name, frames) in enumerate(videos(row).items()):
                path = Path(folder) / f"{number}.mp4"
                write_mp4(path, frames)
                shown[name] = self._wandb.Video(str(path), format="mp4")
            self._run.log(shown)  # copies the files

    def close(self) -> None:
        self._run.finish()
