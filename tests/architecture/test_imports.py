"""The layers of docs/architecture.md hold in the source, and the checker that says so catches what breaks them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest

from architecture import rules
from architecture.rules import Module

MODULES = rules.load_package(Path(__file__).parents[2] / "src" / rules.PACKAGE)


def module(name: str, source: str, is_package: bool = False) -> Module:
    return Module(name, is_package, source)


def test_the_package_was_found():
    assert {"__init__", "core", "core.clock", "config.schema"} <= {module.name for module in MODULES}


def listed(violations: Iterable[str]) -> str:
    """Return all violations, one per line, so that one failure names every place."""
    return "\n".join(violations)


def test_imports_keep_to_the_layers():
    assert not (found := listed(chain.from_iterable(map(rules.layer_violations, MODULES)))), found


def test_nothing_is_unpickled_but_a_parents_factories():
    assert not (found := listed(chain.from_iterable(map(rules.unpickling, MODULES)))), found


def test_files_are_not_too_long():
    assert not (found := listed(filter(None, map(rules.too_long, MODULES)))), found


def test_no_two_public_classes_share_a_name():
    assert rules.shared_class_names(MODULES) == []


def test_limits_are_called_max_and_min():
    assert [problem for module in MODULES for problem in rules.misnamed_limits(module)] == []


def test_no_folder_is_crowded():
    assert rules.crowded(MODULES) == []


def test_no_modules_import_each_other_while_they_load():
    assert rules.import_cycle(MODULES) is None


def test_loading_what_needs_no_jax_does_not_load_it():
    names = [module.name for module in MODULES if rules.inside(module.name, rules.JAX_FREE)]
    assert names
    assert not (found := listed(filter(None, (rules.jax_loaded_by(name, MODULES) for name in names)))), found


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("core.clock", "import zmq", "only the standard library and NumPy"),
        ("core.clock", "from dreamfleet.config.args import FleetArgs", "core may import nothing"),
        ("replay.store", "from dreamfleet.transport import codec", "replay may import ['core']"),
        ("replay.store", "def f():\n    from ..transport import codec", "replay may import ['core']"),
        ("replay.store", "from dreamfleet import transport", "replay may import ['core']"),
        (
            "replay.store",
            "class A:\n    try:\n        import dreamfleet.config\n    except ImportError: ...",
            "replay may",
        ),
        ("agent.dreamer", "import dreamfleet.replay.store", "agent may import"),
        ("roles.env_worker.role", "from dreamfleet.launch import launcher", "roles may import"),
        ("roles.env_worker.role", "from dreamfleet.roles.actor import Actor", "never imports another role"),
        ("roles.env_worker.role", "from .. import actor", "never imports another role"),
        ("roles.actor", "def f():\n    from .learner import Learner", "never imports another role"),
        ("roles.slots", "from dreamfleet.roles.actor import Actor", "never imports another role"),
        ("launch.launcher", "from dreamfleet.roles.env_worker.role import EnvWorker", "only inside a function"),
        ("parallel", "import dreamfleet.roles.replay", "only inside a function"),
        ("parallel", "from dreamfleet import roles", "only inside a function"),
        ("launch.launcher", "from dreamfleet.cli import main", "launch may import"),
        ("launch.launcher", "from dreamfleet import parallel", "launch may import"),
        ("runs.tail", "from dreamfleet.supervision.reports import Report", "runs may import"),
        ("supervision.supervisor", "from dreamfleet.launch.single import unfold", "supervision may import"),
        ("supervision.supervisor", "from dreamfleet.roles import entry", "supervision may import"),
        ("launch.launcher", "from dreamfleet.ui.banner import banner_row", "launch may import"),
        ("ui.screen", "from dreamfleet.commands.train import run_config", "ui may import"),
        ("cli", "from dreamfleet.replay.store import Store", "cli may import"),
        ("roles.env_worker.role", "import jax.numpy as jnp", "JAX belongs to"),
        ("envs.dummy", "def f():\n    from optax import adam", "JAX belongs to"),
        ("common", "from dreamfleet.core import tree", "common has no layer"),
    ],
)
def test_checker_catches_an_import_across_layers(name, source, reason):
    (violation,) = rules.layer_violations(module(name, source))
    assert reason in violation
    assert violation.startswith(f"{name}:")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "core.clock",
            "import time\nimport numpy as np\nfrom dreamfleet.core.errors import Stopped\nfrom . import tree",
        ),
        ("roles.agent", "from dreamfleet.roles.actor import Actor\nfrom .learner import Learner"),
        (
            "roles.env_worker.role",
            "from dreamfleet.roles.slots import Slots\nfrom dreamfleet.transport.client import Client",
        ),
        ("launch.fleet", "def run():\n    from dreamfleet.roles.env_worker.role import EnvWorker"),
        (
            "parallel",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dreamfleet.roles.replay import ReplayRole",
        ),
        ("launch.fleet", "from dreamfleet.roles import entry"),
        ("model.rssm", "import jax"),
        ("roles.learner", "import jax"),
    ],
)
def test_checker_accepts_what_the_layers_allow(name, source):
    assert rules.layer_violations(module(name, source)) == []


@pytest.mark.parametrize("name", ["core", "transport"])
def test_relative_imports_of_a_package_start_at_itself(name):
    (item,) = rules.imports_of(module(name, "from .clock import LocalClock", is_package=True))
    assert item.target == f"dreamfleet.{name}.clock.LocalClock"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.loads(b'')",
        "import cloudpickle as cp\ndef f(x):\n    return cp.load(x)",
        "from pickle import loads",
        "from pickle import Unpickler as U",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
    ],
)
def test_checker_catches_unpickling(source):
    assert len(rules.unpickling(module("transport.codec", source))) == 1
    assert rules.unpickling(module("supervision.child", source)) == []


def test_checker_lets_factories_be_pickled():
    assert rules.unpickling(module("parallel", "import cloudpickle\ncloudpickle.dumps(f)")) == []


def test_checker_follows_imports_to_jax():
    fleet = [
        module("roles", "", is_package=True),
        module("roles.env_worker.role", "from dreamfleet.agent.random_agent import RandomAgent"),
        module("roles.logger", "def f():\n    from dreamfleet.agent.random_agent import RandomAgent"),
        module("agent", "from dreamfleet.agent import dreamer", is_package=True),
        module("agent.random_agent", ""),
        module("agent.dreamer", "import jax"),
    ]
    # The random agent itself is free of JAX, but loading it loads its package first.
    found = rules.jax_loaded_by("roles.env_worker.role", fleet)
    assert found is not None
    assert found.endswith("agent.dreamer -> jax")
    assert rules.jax_loaded_by("roles.logger", fleet) is None


def test_checker_catches_a_circle_of_imports():
    first = module("launch.a", "from dreamfleet import parallel")
    second = module("parallel", "from dreamfleet.launch.b import run")
    third = module("launch.b", "import dreamfleet.launch.a")
    assert rules.import_cycle([first, second, third]) == ["launch.a", "parallel", "launch.b", "launch.a"]
    lazy = module("launch.b", "def f():\n    import dreamfleet.launch.a")
    assert rules.import_cycle([first, second, lazy]) is None


def test_checker_catches_a_long_file(monkeypatch):
    assert rules.too_long(module("core.long", "x = 1\n" * 500)) is None
    long = module("core.long", "x = 1\n" * 501)
    assert "501 lines" in (rules.too_long(long) or "")
    monkeypatch.setitem(rules.LONG, "core.long", "a table")
    assert rules.too_long(long) is None


def test_checker_catches_two_classes_of_one_name():
    first = module("replay.memory", "class Memory: ...\nclass _Slot: ...")
    second = module("envs.builtin", "def make():\n    class Memory: ...\nclass _Slot: ...")
    assert rules.shared_class_names([first]) == []
    found = rules.shared_class_names([first, second])
    assert found == ["Memory is a class in replay.memory:1 and envs.builtin:2"]


@pytest.mark.parametrize("source", ["MOST_ROWS = 3", "_LEAST_ROWS: int = 3", "A, MOST_ROWS = 1, 2"])
def test_checker_catches_a_limit_of_another_name(source):
    (problem,) = rules.misnamed_limits(module("core.limits", source))
    assert "MAX_ or MIN_" in problem
    assert rules.misnamed_limits(module("core.limits", source.replace("MOST", "MAX").replace("LEAST", "MIN"))) == []


def test_checker_catches_a_crowded_folder():
    package = [module("core", "", is_package=True), *(module(f"core.m{n}", "") for n in range(20))]
    assert rules.crowded(package) == []
    assert rules.crowded([*package, module("core.more", "")]) == ["core holds 21 modules"]
