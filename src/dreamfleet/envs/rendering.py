"""Chooses how MuJoCo draws without a screen."""

from __future__ import annotations

import os
import subprocess
import sys

from dreamfleet.core.errors import ConfigError

BACKENDS = ("egl", "osmesa")
# In a process of its own: a library that cannot draw may end it. Nothing is cleaned up, as some fail only at that.
TRIAL = "import os; from mujoco.{0} import GLContext; GLContext(8, 8).make_current(); os._exit(0)"


def choose_renderer() -> None:
    """Sets MUJOCO_GL to the first backend that works here, unless it is set; call before MuJoCo is imported.

    EGL draws on the GPU where there is one, OSMesa on the CPU only. Processes started later inherit the choice.
    """
    if "MUJOCO_GL" in os.environ:
        return
    tried = []
    for backend in BACKENDS:
        reason = _trial(backend)
        if reason is None:
            os.environ["MUJOCO_GL"] = backend
            return
        tried.append(f"{backend}: {reason}")
    raise ConfigError(
        f"MuJoCo cannot draw images here ({'; '.join(tried)}): install libegl1 or libosmesa6, or set MUJOCO_GL to a "
        "backend that works; dmc tasks run without images with env.kwargs.image=False"
    )


def _trial(backend: str) -> str | None:
    """What keeps the backend from drawing."""
    environment = {**os.environ, "MUJOCO_GL": backend}
    environment.pop("PYOPENGL_PLATFORM", None)
    command = [sys.executable, "-c", TRIAL.format(backend)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "no answer within 60 s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
