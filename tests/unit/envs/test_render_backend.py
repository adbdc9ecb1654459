"""How environments draw without a screen: what is set, when a backend is tried, and what is said where none works."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dreamfleet.core.errors import ConfigError, EnvFailed
from dreamfleet.envs.construction_error import construction
from dreamfleet.envs.render import backend as rendering
from dreamfleet.envs.render import gl_trial

EGL = {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl", "PYGLET_HEADLESS": "1"}
OSMESA = {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa"}
NO_SCREEN = {"SDL_VIDEODRIVER": "dummy"}
NAMES = {*rendering.VARIABLES, rendering.NOTHING_WORKS, "DISPLAY", "WAYLAND_DISPLAY"}
CANNOT = "egl: libEGL.so.1 is missing; osmesa: libOSMesa.so.8 is missing"


class Machine:
    """One without a screen, where some backends work. Remembers which were tried, and what was set before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.works: dict[str, dict[str, Any]] = {}
        self.tried: list[str] = []
        self.environment = {"PATH": "here"}
        monkeypatch.setattr(rendering.subprocess, "run", self._run)
        monkeypatch.setattr(rendering.os, "environ", self.environment)
        monkeypatch.setattr(rendering, "_set", {})
        monkeypatch.setattr(rendering, "_drawn_by", [])

    def draws(self, backend: str, renderer: str = "llvmpipe", device: int = 0, first: int = 0) -> None:
        self.works[backend] = {"renderer": renderer, "device": device, "first": first}

    def set(self) -> dict[str, str]:
        return {name: value for name, value in self.environment.items() if name in NAMES}

    def _run(self, command: list[str], **_: Any) -> SimpleNamespace:
        backend = command[-1]
        self.tried.append(backend)
        if backend in self.works:
            return SimpleNamespace(returncode=0, stdout=json.dumps(self.works[backend]), stderr="")
        library = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}[backend]
        return SimpleNamespace(returncode=1, stdout="", stderr=f"some warning\n{library} is missing\n")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`draws_pkg`, which draws by OpenGL, and `plain_pkg`, which does not. Both remember what was set when imported."""
    for name in ("draws_pkg", "plain_pkg"):
        (tmp_path / f"{name}.py").write_text("import os\nSEEN = dict(os.environ)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(rendering, "DRAWS", {"draws_pkg"})
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if type(each).__name__ != "_BeforeImport"])
    yield
    for name in ("draws_pkg", "plain_pkg"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("packages")
def test_a_backend_is_tried_once_and_only_when_a_package_that_draws_is_imported(machine: Machine) -> None:
    machine.draws("egl")
    rendering.prepare_drawing()
    rendering.prepare_drawing()
    importlib.import_module("plain_pkg")
    assert (machine.tried, machine.set()) == ([], NO_SCREEN)
    seen = importlib.import_module("draws_pkg").SEEN
    assert seen == machine.environment
    assert machine.set() == {**NO_SCREEN, **EGL}
    del sys.modules["draws_pkg"]
    importlib.import_module("draws_pkg")
    assert machine.tried == ["egl"]
    assert rendering.chosen() == {**NO_SCREEN, **EGL}


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("found", [EGL, {rendering.NOTHING_WORKS: CANNOT}])
def test_other_processes_of_a_run_take_over_what_was_found(machine: Machine, found: dict[str, str]) -> None:
    machine.environment.update({**NO_SCREEN, **found})
    rendering.prepare_drawing()
    importlib.import_module("draws_pkg")
    assert (machine.tried, rendering.chosen()) == ([], {})
    assert machine.set() == {**NO_SCREEN, **found}


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("screen", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_with_a_screen_nothing_is_set(machine: Machine, screen: str) -> None:
    machine.environment[screen] = ":0"
    rendering.prepare_drawing()
    importlib.import_module("draws_pkg")
    assert (machine.tried, machine.set()) == ([], {screen: ":0"})


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"MUJOCO_GL": "osmesa"}, OSMESA),
        ({"PYOPENGL_PLATFORM": "egl"}, EGL),
        ({"MUJOCO_GL": "egl", "PYGLET_HEADLESS": "0"}, {**EGL, "PYGLET_HEADLESS": "0"}),
        ({"MUJOCO_GL": "glfw"}, {"MUJOCO_GL": "glfw"}),
        ({"SDL_VIDEODRIVER": "x11", "MUJOCO_GL": "disable"}, {"SDL_VIDEODRIVER": "x11", "MUJOCO_GL": "disable"}),
    ],
)
def test_what_the_user_has_set_stays(machine: Machine, own: dict[str, str], expected: dict[str, str]) -> None:
    machine.environment.update(own)
    rendering.prepare_drawing()
    importlib.import_module("draws_pkg")
    assert (machine.tried, machine.set()) == ([], {**NO_SCREEN, **expected})


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        (("egl", "osmesa"), EGL),
        (("osmesa",), OSMESA),
        ((), {rendering.NOTHING_WORKS: CANNOT}),
    ],
)
def test_egl_comes_before_osmesa(machine: Machine, backends: tuple[str, ...], expected: dict[str, str]) -> None:
    for backend in backends:
        machine.draws(backend)
    rendering.choose()
    assert machine.set() == expected


def test_a_gpu_that_is_not_the_first_device_is_named(machine: Machine) -> None:
    machine.draws("egl", "NVIDIA H200", device=2)
    rendering.choose()
    assert machine.set() == {**EGL, "MUJOCO_EGL_DEVICE_ID": "2", "PYGLET_HEADLESS_DEVICE": "2"}


@pytest.mark.parametrize(
    ("software", "broken", "expected"),
    [
        ([False, True], set(), {"renderer": "device 0", "device": 0, "first": 0}),
        ([True, False], set(), {"renderer": "device 1", "device": 1, "first": 0}),
        ([True, False], {1}, {"renderer": "device 0", "device": 0, "first": 0}),
        ([False, False, True], {0}, {"renderer": "device 1", "device": 1, "first": 1}),
    ],
)
def test_egl_draws_on_a_gpu_where_one_works(
    monkeypatch: pytest.MonkeyPatch, software: list[bool], broken: set[int], expected: dict[str, Any]
) -> None:
    def draw_on(egl: Any, device: int) -> str:
        if device in broken:
            raise gl_trial.CannotDraw("cannot be initialised")
        return f"device {device}"

    monkeypatch.setattr(gl_trial, "load", lambda names: None)
    monkeypatch.setattr(gl_trial, "egl_devices", lambda egl: list(enumerate(software)))
    monkeypatch.setattr(gl_trial, "draw_on", draw_on)
    assert gl_trial.try_egl() == expected


def test_egl_without_a_device_that_works_says_what_each_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gl_trial, "load", lambda names: None)
    monkeypatch.setattr(gl_trial, "egl_devices", lambda egl: [])
    with pytest.raises(gl_trial.CannotDraw, match="EGL knows no device"):
        gl_trial.try_egl()


def test_a_library_that_is_missing_is_named_by_the_trials_last_line() -> None:
    program = "import sys; sys.argv = ['', 'osmesa']; import gl_trial; gl_trial.OSMESA_LIBRARIES = ('libnone.so.9',); "
    done = subprocess.run(
        [sys.executable, "-c", program + "gl_trial.main('osmesa')"],
        env={**os.environ, "PYTHONPATH": str(rendering.TRIAL.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("libnone.so.9: ")


def test_a_driver_that_ends_its_process_is_one_that_does_not_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    aborts = tmp_path / "aborts.py"
    aborts.write_text("import os\nos.abort()\n")
    monkeypatch.setattr(rendering, "TRIAL", aborts)
    assert rendering.try_backends().reason == "egl: SIGABRT; osmesa: SIGABRT"


def test_where_nothing_works_the_message_says_what_to_install(machine: Machine) -> None:
    with pytest.raises(
        ConfigError, match=r"dmc:walker_walk cannot draw images: .*\(egl: .*; osmesa: .*\): apt-get inst"
    ):
        rendering.require_renderer("dmc:walker_walk")
    with pytest.raises(EnvFailed) as raised, construction("environment 'gym:X'"):
        raise RuntimeError("an OpenGL platform library has not been loaded into this process")
    assert str(raised.value).endswith(f"nothing here draws without a screen ({CANNOT}): {rendering.INSTALL}")
    with pytest.raises(EnvFailed) as raised, construction("environment 'gym:X'"):
        raise RuntimeError("no licence")
    assert "screen" not in str(raised.value)


def test_a_backend_of_the_users_that_fails_is_named(machine: Machine) -> None:
    machine.environment["MUJOCO_GL"] = "glfw"
    assert rendering.hint("GLFWError: X11: The DISPLAY environment variable is missing") == (
        "; MUJOCO_GL=glfw is set here: unset it, so that what works is chosen"
    )
    del machine.environment["MUJOCO_GL"]
    machine.draws("egl")
    rendering.choose()
    assert rendering.hint("GLError: EGL_BAD_ALLOC") == ""


@pytest.mark.usefixtures("packages")
def test_the_choice_is_told_in_words_where_something_draws(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pygame", raising=False)  # of another test
    machine.draws("egl")
    rendering.prepare_drawing()
    assert rendering.drawing() is None
    importlib.import_module("draws_pkg")
    assert rendering.drawing() == (
        "no screen, MUJOCO_GL=egl PYOPENGL_PLATFORM=egl PYGLET_HEADLESS=1 SDL_VIDEODRIVER=dummy, drawn by llvmpipe"
    )
