"""The catalogue: every suite's module, what is said when one is missing, and the extras that install them."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.catalog import SUITES, load_suite, unknown_task

ROOT = Path(__file__).parents[3]
LIGHT = """
import sys
from dreamfleet.envs.registry import make_env
make_env("dummy", 0, 0, {"size": 8}).close()
print(sorted({"gymnasium", "PIL", "ale_py", "crafter", "dm_control", "minigrid", "mujoco"} & set(sys.modules)))
"""


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_has_a_module_that_keeps_to_the_protocol(name: str) -> None:
    module = importlib.import_module(f"dreamfleet.envs.suites.{name}")
    assert list(inspect.signature(module.make).parameters)[:3] == ["task", "options", "seed"]
    assert SUITES[name].about
    assert bool(SUITES[name].needs) == bool(SUITES[name].install)
    if not SUITES[name].missing():
        tasks = load_suite(name).tasks()
        assert len(set(tasks)) == len(tasks)
        assert not SUITES[name].default or SUITES[name].default in tasks


def test_every_module_of_a_suite_is_in_the_catalogue() -> None:
    folder = ROOT / "src" / "dreamfleet" / "envs" / "suites"
    assert {path.stem for path in folder.iterdir() if not path.name.startswith("_")} == set(SUITES)


def test_extras_named_in_the_catalogue_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for suite in SUITES.values() for extra in re.findall(r"dreamfleet\[([\w-]+)\]", suite.install)}
    assert named == {"atari", "crafter", "dmc", "minigrid", "mujoco", "procgen", "memory-maze"}
    assert named <= extras.keys()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("atari", r"suite 'atari' needs ale_py, not installed here: pip install 'dreamfleet\[atari\]'"),
        ("dmlab", "suite 'dmlab' needs deepmind_lab, not installed here: build its Python package from https://"),
        ("minecraft", "suite 'minecraft' needs minerl, not installed here: install a Java 8 JDK and MineRL 0.4.4"),
    ],
)
def test_a_missing_library_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=message):
        load_suite(name)


def test_unknown_tasks_get_the_closest_name_or_all_of_few() -> None:
    assert (
        str(unknown_task("s", "WALK_er", ["walker", "run"]))
        == "suite 's' has no task 'WALK_er': did you mean s:walker?"
    )
    assert str(unknown_task("s", "xyz", ["walker", "run"])) == "suite 's' has no task 'xyz': there are walker, run"
    many = [f"{letter}{letter}{letter}" for letter in "abcdefghijklmn"]
    assert str(unknown_task("s", "xyz", many)) == "suite 's' has no task 'xyz': `dreamfleet envs` lists them"


def test_the_dummy_environment_loads_no_library() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
