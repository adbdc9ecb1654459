"""Videos, read back frame by frame."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dreamfleet.metrics.sinks.video_files import VideoFiles
from dreamfleet.metrics.video import encode_gif, enlargement, write_mp4

READ = """
import json, sys
import imageio.v3 as iio
import numpy as np
np.save(sys.argv[2], iio.imread(sys.argv[1], plugin="FFMPEG"))
about = iio.immeta(sys.argv[1], plugin="FFMPEG")
print(json.dumps({key: about[key] for key in ("codec", "pix_fmt", "fps", "duration")}))
"""


def read_mp4(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Its frames, and what is known of it. In a process of its own: the reader forks, which JAX's threads forbid."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "frames.npy"
        command = [sys.executable, "-c", READ, str(path), str(found)]
        about = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        return np.load(found), json.loads(about)


def frames(length: int, height: int, width: int, channels: int = 3) -> np.ndarray:
    """Each frame is of one grey, brighter from frame to frame, with a white pixel in its corner."""
    video = np.empty((length, height, width, channels), np.uint8)
    video[:] = (20 + 10 * np.arange(length))[:, None, None, None]
    video[:, 0, 0] = 255
    return video


@pytest.mark.parametrize(
    ("height", "width", "channels", "shown"),
    [
        (48, 48, 1, (288, 288)),
        (64, 64, 3, (320, 320)),
        (31, 33, 3, (280, 298)),  # nine times: 279 by 297, made even
        (210, 161, 3, (210, 162)),
        (400, 121, 4, (400, 122)),
    ],
)
def test_an_mp4_has_all_frames_enlarged_by_a_whole_factor_to_even_sizes(tmp_path, height, width, channels, shown):
    video = frames(7, height, width, channels)
    write_mp4(tmp_path / "a.mp4", video)
    read, _ = read_mp4(tmp_path / "a.mp4")
    assert read.shape == (7, *shown, 3)
    factor = enlargement(height, width)
    corner = read[:, : factor // 2, : factor // 2]
    assert factor == 1 or corner.min() > 200
    inside = np.median(read[:, : height * factor, : width * factor], (1, 2)).astype(int)
    assert np.abs(inside - (20 + 10 * np.arange(7))[:, None]).max() <= 3
    assert shown[1] == width * factor or read[:, :, -1].max() < 60  # the edge that made it even
    assert list(tmp_path.iterdir()) == [tmp_path / "a.mp4"]


def test_an_mp4_is_of_the_kind_that_every_player_knows(tmp_path: Path) -> None:
    write_mp4(tmp_path / "a.mp4", frames(30, 64, 64))
    _, about = read_mp4(tmp_path / "a.mp4")
    assert about["codec"] == "h264"
    assert about["pix_fmt"].startswith("yuv420p")
    assert about["fps"] == 15
    assert about["duration"] == 2.0


def test_an_mp4_that_cannot_be_written_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"ffmpeg could not write .*/missing/a\.mp4: .*No such file or directory"):
        write_mp4(tmp_path / "missing" / "a.mp4", frames(2, 8, 8))
    assert list(tmp_path.iterdir()) == []


def test_a_gif_has_all_frames(tmp_path: Path) -> None:
    image = Image.open(io.BytesIO(encode_gif(frames(5, 16, 12, 1))))
    assert image.n_frames == 5
    assert image.size == (12, 16)
    for number in range(5):
        image.seek(number)
        shown = np.asarray(image.convert("RGB")).astype(int)
        assert np.abs(shown[1:, 1:] - (20 + 10 * number)).max() <= 3


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_files_are_named_by_what_they_show_and_when(tmp_path: Path) -> None:
    sink = VideoFiles(tmp_path / "videos", keep=5)
    video = frames(2, 8, 8)
    sink.write({"step": 40, "time": 0.0, "report/openloop/image": video, "eval/openloop/image": video, "loss": 1.0})
    sink.write({"step": 50, "time": 0.0, "episode/image": video, "eval/episode/left eye": video})
    sink.write({"step": 60, "time": 0.0, "loss": 1.0})
    assert names(tmp_path / "videos") == {
        "openloop-image-40.mp4",
        "eval-openloop-image-40.mp4",
        "episode-image-50.mp4",
        "eval-episode-left-eye-50.mp4",
    }


def test_the_newest_files_of_each_kind_are_kept(tmp_path: Path) -> None:
    sink = VideoFiles(tmp_path, keep=2)
    video = frames(2, 8, 8)
    (tmp_path / "mine.mp4").touch()
    sink.write({"step": 1, "episode/image": video})
    for step in (9, 10, 100):
        sink.write({"step": step, "report/openloop/image": video})
    assert names(tmp_path) == {"mine.mp4", "episode-image-1.mp4", "openloop-image-10.mp4", "openloop-image-100.mp4"}
