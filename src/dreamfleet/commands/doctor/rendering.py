"""Whether environments can draw images here, and whether videos can be written."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping

from dreamfleet.commands.doctor.devices import run
from dreamfleet.commands.doctor.findings import NOTE, OK, Finding
from dreamfleet.envs.render.backend import BACKENDS, INSTALL, Trial, try_backends

TRIAL_S = 6.0  # for each backend
FFMPEG_DEADLINE_S = 5.0


def rendering() -> list[Finding]:
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    return [rendering_finding(os.environ, try_backends([chosen] if chosen in BACKENDS else BACKENDS, TRIAL_S))]


def rendering_finding(environment: Mapping[str, str], trial: Trial) -> Finding:
    """`trial`: of the backend that the user has chosen, or of all."""
    display = environment.get("WAYLAND_DISPLAY") or environment.get("DISPLAY")
    chosen = environment.get("MUJOCO_GL", "")
    text = (f"display {display}" if display else "no display") + (f", MUJOCO_GL={chosen}" if chosen else "")
    if chosen and chosen.lower() not in BACKENDS:
        if display:
            return Finding("rendering", OK, text)
        return Finding("rendering", NOTE, f"{text}, which needs a display", "unset MUJOCO_GL")
    if not trial.backend:
        fix = f"unset MUJOCO_GL, or {INSTALL}" if chosen else INSTALL
        return Finding("rendering", NOTE, f"{text}; nothing draws without one: {trial.reason}", fix)
    text += f", {trial.backend} draws on {trial.renderer}"
    if not display:
        text += f": {' '.join(f'{name}={value}' for name, value in trial.variables().items())}"
    return Finding("rendering", OK, text)


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
