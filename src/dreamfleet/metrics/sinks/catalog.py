"""The sinks that a configuration can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dreamfleet.metrics.sinks.isolated import IsolatedSink, Writes
from dreamfleet.metrics.sinks.mlflow import MlflowSink
from dreamfleet.metrics.sinks.tensorboard import TensorBoardSink
from dreamfleet.metrics.sinks.video_files import VideoFiles
from dreamfleet.metrics.sinks.wandb import WandbSink

MakeSink = Callable[[Path, Mapping[str, Any]], Writes]


def _tensorboard(folder: Path, settings: Mapping[str, Any]) -> Writes:
    return TensorBoardSink(folder / "tensorboard")


SINKS: dict[str, tuple[str, MakeSink]] = {
    "tensorboard": ("TensorBoard", _tensorboard),
    "wandb": ("W&B", WandbSink),
    "mlflow": ("MLflow", MlflowSink),
}


def make_sinks(
    names: Sequence[str], folder: Path, settings: Mapping[str, Any], keep_videos: int, tell: Callable[[str], None]
) -> list[IsolatedSink]:
    """The named ones, and the video files unless none are to be kept. `settings` is the run's configuration."""
    sinks = []
    for name, (label, make) in SINKS.items():
        if name in names:
            sinks.append(IsolatedSink(label, partial(make, folder, settings), tell))
    if keep_videos:
        sinks.append(IsolatedSink("Video writing", partial(VideoFiles, folder / "videos", keep_videos), tell))
    return sinks
