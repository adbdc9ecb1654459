"""Videos as mp4 files in the run folder, of which the newest are kept."""

from __future__ import annotations

import re
from pathlib import Path

from dreamfleet.metrics.sinks.libraries import require
from dreamfleet.metrics.values import Row, videos
from dreamfleet.metrics.video import write_mp4


class VideoFiles:
    """`report/openloop/image` becomes `openloop-image-<step>.mp4`, and `eval/openloop/image` keeps its `eval`."""

    def __init__(self, folder: Path, keep: int) -> None:
        require("Video writing", "imageio_ffmpeg", "pip install imageio-ffmpeg")
        self._folder = folder
        self._keep = keep

    def write(self, row: Row) -> None:
        for name, frames in videos(row).items():
            kind = re.sub(r"[^\w.]+", "-", name.removeprefix("report/")).strip("-")
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make_room(kind)
            write_mp4(self._folder / f"{kind}-{int(row['step'])}.mp4", frames)

    def close(self) -> None:
        pass

    def _make_room(self, kind: str) -> None:
        """For one more of this kind. Steps decide what is oldest: a resumed run starts over at its snapshot."""
        name = re.compile(re.escape(kind) + r"-(\d+)\.mp4")
        found = {int(match[1]): path for path in self._folder.iterdir() if (match := name.fullmatch(path.name))}
        for step in sorted(found)[: max(0, len(found) - self._keep + 1)]:
            found[step].unlink(missing_ok=True)
