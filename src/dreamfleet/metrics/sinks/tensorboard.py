"""Event files that TensorBoard reads: numbers, distributions, and videos as moving images."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.metrics.sinks.libraries import require
from dreamfleet.metrics.values import Row, distributions, numbers, videos
from dreamfleet.metrics.video import encode_gif, to_rgb

BINS = 30
MAX_FRAMES = 256  # of a video: browsers load all of them at once


class TensorBoardSink:
    """Writes records itself instead of through the library's own writer, whose thread would hide a full disk."""

    def __init__(self, folder: Path) -> None:
        require("TensorBoard", "tensorboardX", "pip install tensorboardX")
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import RecordWriter
        from tensorboardX.summary import make_histogram

        self._proto: Any = event_pb2
        self._summary: Any = summary_pb2.Summary
        self._make_histogram = make_histogram
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = RecordWriter(str(folder / name))
        self._begun = False
        self._write(time.time(), 0, file_version="brain.Event:2")
        self._file.flush()

    def write(self, row: Row) -> None:
        step, now = int(row["step"]), float(row["time"])
        if (
            not self._begun
        ):  # what an earlier part of this run wrote beyond the step it continued from is no longer true
            self._begun = True
            start = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._write(now, step, session_log=start)
        value = self._summary.Value
        values = [value(tag=name, simple_value=number) for name, number in numbers(row).items()]
        for name, some in distributions(row).items():
            values.append(value(tag=name, histo=self._make_histogram(some.astype(np.float64), BINS)))
        for name, frames in videos(row).items():
            values.append(value(tag=name, image=self._image(frames[:MAX_FRAMES])))
        if values:
            self._write(now, step, summary=self._summary(value=values))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _image(self, frames: np.ndarray) -> Any:
        frames = to_rgb(frames)
        return self._summary.Image(
            height=frames.shape[1], width=frames.shape[2], colorspace=3, encoded_image_string=encode_gif(frames)
        )

    def _write(self, now: float, step: int, **what: Any) -> None:
        self._file.write(self._proto.Event(wall_time=now, step=step, **what).SerializeToString())
