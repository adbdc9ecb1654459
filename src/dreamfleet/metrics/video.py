"""Frames as files that people can look at: mp4 for any player, gif where only images are shown."""

from __future__ import annotations

import io
import signal
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

from dreamfleet.core.files.disk import atomic_file

FPS = 15
SHOWN_PIXELS = 320  # smaller images are enlarged towards this, each pixel to a square
ENCODE_TIMEOUT_S = 45.0


def write_mp4(path: Path, frames: np.ndarray, fps: int = FPS) -> None:
    """H.264 of `frames`, uint8 [time, height, width, channels]. The file appears once it is complete."""
    import imageio_ffmpeg

    frames = to_rgb(frames)
    height, width = frames.shape[1:3]
    factor = enlargement(height, width)
    # Players want even sizes: an odd one gets a black edge.
    filters = f"scale={factor * width}:{factor * height}:flags=neighbor,pad=ceil(iw/2)*2:ceil(ih/2)*2"
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "pipe:0"]
    target = ["-vf", filters, "-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-threads", "1"]
    encode = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *source, *target, "-f", "mp4"]
    with atomic_file(path, synced=False) as temporary:
        command = [*encode, str(temporary.absolute())]  # so that no name reads as an option
        run = subprocess.run(
            command, input=frames.tobytes(), capture_output=True, timeout=ENCODE_TIMEOUT_S, check=False
        )
        if run.returncode:
            raise OSError(f"ffmpeg could not write {path}: {_reason(run)}")


def encode_gif(frames: np.ndarray) -> bytes:
    images = [Image.fromarray(frame) for frame in to_rgb(frames)]
    file = io.BytesIO()
    images[0].save(file, "GIF", save_all=True, append_images=images[1:], duration=round(1000 / FPS), loop=0)
    return file.getvalue()


def to_rgb(frames: np.ndarray) -> np.ndarray:
    """Three channels, whatever there are: of anything but colours the first one is shown, in grey."""
    return frames if frames.shape[-1] == 3 else np.repeat(frames[..., :1], 3, -1)


def enlargement(height: int, width: int) -> int:
    return max(1, SHOWN_PIXELS // max(height, width))


def _reason(run: subprocess.CompletedProcess[bytes]) -> str:
    if run.returncode < 0:
        return f"it was ended by signal {-run.returncode} ({signal.strsignal(-run.returncode)})"
    words = run.stderr.decode(errors="replace").split("\n")
    return next((line.strip() for line in words if line.strip()), f"it ended with code {run.returncode}")
