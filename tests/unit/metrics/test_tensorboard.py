"""Event files, read back record by record."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboardX.proto.event_pb2 import SessionLog

from dreamfleet.metrics.sinks.tensorboard import MAX_FRAMES, TensorBoardSink
from support.event_files import events


def written(folder: Path, *rows: dict[str, Any]) -> list[Any]:
    sink = TensorBoardSink(folder)
    for row in rows:
        sink.write(row)
    sink.close()
    return events(folder)


def test_numbers_have_their_step_and_time(tmp_path: Path) -> None:
    rows = [{"step": 7, "time": 100.5, "train/loss": 0.25, "fps": 3}, {"step": 9, "time": 101.0, "train/loss": -1e-3}]
    version, _, first, second = written(tmp_path / "tensorboard", *rows)
    assert version.file_version == "brain.Event:2"
    assert (first.step, first.wall_time) == (7, 100.5)
    assert {value.tag: value.simple_value for value in first.summary.value} == {"train/loss": 0.25, "fps": 3}
    assert (second.step, second.summary.value[0].simple_value) == (9, np.float32(-1e-3))


def test_the_first_row_hides_what_an_earlier_part_of_the_run_wrote_beyond_its_step(tmp_path: Path) -> None:
    _, start, _ = written(tmp_path, {"step": 7, "time": 0.0, "x": 1.0})
    assert start.step == 7
    assert start.session_log.status == SessionLog.START


def test_rows_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write({"step": 1, "time": 0.0, "x": 1.0})
    assert len(events(tmp_path)) == 3
    sink.close()


def test_several_numbers_become_a_distribution(tmp_path: Path) -> None:
    values = np.array([1.0, 2.0, 2.0, np.nan, 9.0])
    *_, event = written(tmp_path, {"step": 1, "time": 0.0, "returns": values, "none": np.array([np.inf])})
    (value,) = event.summary.value
    histogram = value.histo
    assert (value.tag, histogram.num, histogram.min, histogram.max, histogram.sum) == ("returns", 4, 1, 9, 14)
    assert sum(histogram.bucket) == 4


def test_a_video_is_a_moving_image(tmp_path: Path) -> None:
    video = np.zeros((4, 6, 5, 1), np.uint8)
    video[2] = 200
    *_, event = written(tmp_path, {"step": 1, "time": 0.0, "report/openloop/image": video})
    (value,) = event.summary.value
    assert (value.tag, value.image.height, value.image.width) == ("report/openloop/image", 6, 5)
    image = Image.open(io.BytesIO(value.image.encoded_image_string))
    assert image.n_frames == 3  # the first two are one that stays for longer
    assert image.size == (5, 6)


def test_of_a_long_video_the_beginning_is_shown(tmp_path: Path) -> None:
    video = np.arange(MAX_FRAMES + 50).astype(np.uint8)[:, None, None, None].repeat(4, 1).repeat(4, 2)
    *_, event = written(tmp_path, {"step": 1, "time": 0.0, "episode/image": video})
    assert Image.open(io.BytesIO(event.summary.value[0].image.encoded_image_string)).n_frames == MAX_FRAMES


def test_nan_is_shown_as_nan(tmp_path: Path) -> None:
    *_, event = written(tmp_path, {"step": 1, "time": 0.0, "loss": float("nan")})
    assert event.summary.value[0].simple_value == pytest.approx(float("nan"), nan_ok=True)
