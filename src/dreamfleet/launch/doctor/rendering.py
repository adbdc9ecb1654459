"""Whether environments can draw images here, and whether videos can be written."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
from collections.abc import Mapping, Sequence

from dreamfleet.launch.doctor.devices import run
from dreamfleet.launch.doctor.findings import NOTE, OK, Finding

LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa", "glfw": "glfw"}
OFF_SCREEN = ("egl", "osmesa")  # what is tried where MUJOCO_GL is not set
FFMPEG_DEADLINE_S = 5.0


def rendering() -> list[Finding]:
    found = [backend for backend, library in LIBRARIES.items() if ctypes.util.find_library(library)]
    return [rendering_finding(os.environ, found)]


def rendering_finding(environment: Mapping[str, str], found: Sequence[str]) -> Finding:
    display = environment.get("WAYLAND_DISPLAY") or environment.get("DISPLAY")
    chosen = environment.get("MUJOCO_GL", "")
    text = f"display {display}" if display else "no display"
    text += f", libraries: {', '.join(found) or 'none'}"
    if chosen:
        text += f", MUJOCO_GL={chosen}"
        if chosen.lower() in LIBRARIES and chosen.lower() not in found:
            fix = f"unset MUJOCO_GL, or install {_package(chosen.lower())}"
            return Finding("rendering", NOTE, f"{text}, which is not installed", fix)
        return Finding("rendering", OK, text)
    if not set(found) & set(OFF_SCREEN):
        fix = "for images of dmc and memory_maze tasks: apt-get install libegl1, or libosmesa6 without a GPU"
        return Finding("rendering", NOTE, text, fix)
    return Finding("rendering", OK, text)


def _package(backend: str) -> str:
    return {"egl": "libegl1", "osmesa": "libosmesa6", "glfw": "libglfw3"}[backend]


def video() -> list[Finding]:
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        return [Finding("video", NOTE, "no ffmpeg: no videos are written", "pip install imageio-ffmpeg")]
    import imageio_ffmpeg

    try:
        program = imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        fix = "pip install --force-reinstall imageio-ffmpeg"
        return [Finding("video", NOTE, f"no ffmpeg: {error}", fix)]
    code, answer, _ = run([program, "-version"], FFMPEG_DEADLINE_S)
    if code != 0:
        fix = "set IMAGEIO_FFMPEG_EXE to an ffmpeg that works"
        return [Finding("video", NOTE, f"{program} does not run: no videos are written", fix)]
    return [Finding("video", OK, " ".join(answer.split()[:3]))]
