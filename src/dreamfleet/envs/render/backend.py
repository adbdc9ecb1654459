"""Chooses how environments draw where there is no screen: by EGL on a GPU or the CPU, or by OSMesa on the CPU.

Setting a variable costs nothing; trying a backend costs a process. So one is tried when a package that draws is
imported for the first time, and what was found is passed on to the other processes of a run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, NamedTuple

from dreamfleet.core.errors import ConfigError

BACKENDS = ("egl", "osmesa")
DRAWS = {"mujoco", "dm_control", "OpenGL", "pyglet"}  # packages that draw by OpenGL, and read variables when imported
CHOSEN = ("MUJOCO_GL", "PYOPENGL_PLATFORM")  # who sets one of these has chosen
VARIABLES = (*CHOSEN, "MUJOCO_EGL_DEVICE_ID", "PYGLET_HEADLESS", "PYGLET_HEADLESS_DEVICE", "SDL_VIDEODRIVER")
NOTHING_WORKS = "DREAMFLEET_CANNOT_DRAW"  # tells processes of a run that no backend works, and why
TRIAL = Path(__file__).with_name("gl_trial.py")
TRIAL_S = 60.0
INSTALL = "apt-get install libegl1 libgl1 libgl1-mesa-dri, or libosmesa6"
ABOUT_DRAWING = re.compile(r"OpenGL|\begl|OSMesa|glfw|GLContext|libGL|display|X11|video device|DISPLAY", re.IGNORECASE)

_set: dict[str, str] = {}  # the variables that this process has set
_drawn_by: list[str] = []  # by what, if this process has tried it


class Trial(NamedTuple):
    """What came of trying the backends."""

    backend: str = ""  # the first that works
    renderer: str = ""  # what draws with it, such as a GPU
    device: int | None = None  # where it is not the one that libraries take by themselves
    reason: str = ""  # what keeps those before it from drawing

    def variables(self) -> dict[str, str]:
        if not self.backend:
            return {NOTHING_WORKS: self.reason}
        found = dict.fromkeys(CHOSEN, self.backend)
        if self.backend == "egl":
            found["PYGLET_HEADLESS"] = "1"
            if self.device is not None:
                found |= dict.fromkeys(("MUJOCO_EGL_DEVICE_ID", "PYGLET_HEADLESS_DEVICE"), str(self.device))
        return found


def prepare_drawing() -> None:
    """Call before an environment's packages are imported. What the user has set stays."""
    if has_screen() or any(isinstance(finder, _BeforeImport) for finder in sys.meta_path):
        return
    _set_variables({"SDL_VIDEODRIVER": "dummy"})
    if not (DRAWS & sys.modules.keys()):  # else it is too late
        sys.meta_path.insert(0, _BeforeImport())


def chosen() -> dict[str, str]:
    """What this process has set: for the other processes of the run."""
    return dict(_set)


def choose() -> None:
    """Sets what libraries that draw read when they are imported, unless somebody has chosen."""
    own = next((os.environ[name] for name in CHOSEN if name in os.environ), None)
    if own is not None:
        if own in BACKENDS:
            _set_variables(Trial(own).variables())
    elif NOTHING_WORKS not in os.environ:
        trial = try_backends()
        _drawn_by[:] = [trial.renderer] if trial.backend else []
        _set_variables(trial.variables())


def require_renderer(what: str, otherwise: str = "") -> None:
    """As `choose`, also on a machine with a screen; raises `ConfigError` where nothing works."""
    choose()
    if NOTHING_WORKS in os.environ:
        raise ConfigError(f"{what} cannot draw images: {cannot_draw(os.environ)}{otherwise}")


def try_backends(backends: Sequence[str] = BACKENDS, timeout_s: float = TRIAL_S) -> Trial:
    """The first of them that works."""
    reasons: list[str] = []
    for backend in backends:
        answer, reason = _try(backend, timeout_s)
        if answer:
            device = answer["device"] if answer["device"] != answer["first"] else None
            return Trial(backend, answer["renderer"], device, "; ".join(reasons))
        reasons.append(f"{backend}: {reason}")
    return Trial(reason="; ".join(reasons))


def drawing() -> str | None:
    """How the packages that this process has imported draw; None where none of them does, or nobody has to choose."""
    if not (DRAWS | {"pygame"}) & sys.modules.keys():
        return None
    if NOTHING_WORKS in os.environ:
        return cannot_draw(os.environ)
    found = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    if not found:
        return None
    words = "" if has_screen() else "no screen, "
    return f"{words}{' '.join(found)}{''.join(f', drawn by {renderer}' for renderer in _drawn_by)}"


def hint(words: str) -> str:
    """What to do about an error that is about drawing; nothing where that is not known."""
    if not is_about_drawing(words):
        return ""
    if NOTHING_WORKS in os.environ:
        return f"; {cannot_draw(os.environ)}"
    own = [f"{name}={os.environ[name]}" for name in CHOSEN if name in os.environ and name not in _set]
    return f"; {' and '.join(own)} is set here: unset it, so that what works is chosen" if own else ""


def is_about_drawing(words: str) -> bool:
    return ABOUT_DRAWING.search(words) is not None


def cannot_draw(environment: Mapping[str, str]) -> str:
    return f"nothing here draws without a screen ({environment[NOTHING_WORKS]}): {INSTALL}"


def has_screen() -> bool:
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


class _BeforeImport(MetaPathFinder):
    """Finds nothing. Is asked about every import, and chooses before the first one that draws."""

    _done = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if not self._done and name in DRAWS:
            self._done = True
            choose()


def _set_variables(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if name not in os.environ:
            os.environ[name] = _set[name] = value


def _try(backend: str, timeout_s: float) -> tuple[dict[str, Any] | None, str]:
    """What draws, or what keeps the backend from drawing."""
    command = [sys.executable, "-I", "-S", str(TRIAL), backend]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {timeout_s:g} s"
    if done.returncode == 0:
        return json.loads(done.stdout), ""
    ended = f"exit code {done.returncode}" if done.returncode > 0 else signal.Signals(-done.returncode).name
    lines = done.stderr.strip().splitlines()
    return None, lines[-1] if lines else ended
