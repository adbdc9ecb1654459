"""How environments draw, from the process that asks for the spaces to those of the roles, and in check-env."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dreamfleet.commands.envs import command as env_tools
from dreamfleet.commands.envs.trial import inspect_env
from dreamfleet.config.load import parse_overrides
from dreamfleet.envs.render import backend
from dreamfleet.launch.env_probe import ask_spaces
from dreamfleet.launch.fleet import NO_DEVICE
from dreamfleet.launch.launcher import with_variables
from dreamfleet.supervision.role_spec import RoleSpec


@pytest.fixture(autouse=True)
def no_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*backend.VARIABLES, backend.NOTHING_WORKS, "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pyglet.py").write_text("import os\nSEEN = dict(os.environ)\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])


def test_the_process_that_asks_for_the_spaces_says_how_they_draw() -> None:
    variables = ask_spaces(parse_overrides(["env=support.drawing_env:Draws"]), 60.0).variables
    assert variables["SDL_VIDEODRIVER"] == "dummy"
    assert ("MUJOCO_GL" in variables) != (backend.NOTHING_WORKS in variables)  # as it is on this machine


def test_an_environment_that_does_not_draw_costs_no_trial() -> None:
    assert ask_spaces(parse_overrides(["env=support.faulty_envs:Correct"]), 60.0).variables == {
        "SDL_VIDEODRIVER": "dummy"
    }


def test_roles_are_started_with_what_was_found_beside_their_own() -> None:
    variables = {"MUJOCO_GL": "egl", "JAX_PLATFORMS": "never"}
    agent, worker = with_variables([RoleSpec("agent", print), RoleSpec("env-0", print, env=NO_DEVICE)], variables)
    assert agent.env == variables
    assert worker.env == {**variables, **NO_DEVICE}


def test_check_env_shows_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    report = inspect_env(parse_overrides(["env=support.drawing_env:Draws"]), 20)
    assert report["ok"]
    assert ("drawn by" in report["drawing"]) != ("nothing here draws without a screen" in report["drawing"])
    env_tools.show_report(report)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("drawing ")]
    assert report["drawing"] in line
    assert inspect_env(parse_overrides(["env=catch"]), 20)["drawing"] is None


def test_an_error_of_drawing_where_nothing_works_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.NOTHING_WORKS, "egl: no library")
    report: dict[str, Any] = inspect_env(parse_overrides(["env=support.drawing_env:CannotDraw"]), 20)
    (found,) = report["violations"]
    assert found["fix"].endswith(f"nothing here draws without a screen (egl: no library): {backend.INSTALL}")
