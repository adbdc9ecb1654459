"""Packages that register environments with Gymnasium: `MODULE`, or `MODULE:FUNCTION` where a call does it.

Most of this finds words for an id that is not there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.text.suggestions import closest_names, did_you_mean

# How ids begin whose package has a suite here: the module that registers them, and the suite.
BUNDLED = {"ALE/": ("ale_py", "atari"), "MiniGrid-": ("minigrid", "minigrid"), "BabyAI-": ("minigrid", "minigrid")}
REGISTERS = re.compile(r"\bregister\(")
MAX_FILES, MAX_BYTES = 2000, 1 << 20


def register(task: str) -> tuple[str, str]:
    """Has `[MODULE[:FUNCTION]:]ID` registered; returns the id, and what stands before it."""
    *source, identifier = task.split(":")
    if len(source) > 2:
        raise ConfigError(f"environment {task!r}: write gym:ID, gym:MODULE:ID or gym:MODULE:FUNCTION:ID")
    if source:
        _expect_installed(source[0], task)
        run(*(*source, "")[:2])
    return identifier, ":".join(source)


@cache
def run(module: str, function: str = "") -> set[str]:
    """Imports the module and calls its function, once in a process; returns the ids that this registers."""
    before = set(gymnasium.registry)
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot import {module!r}: {error}") from error
    if function:
        _call(loaded, function)
    return gymnasium.registry.keys() - before


def registered_by(module: str, function: str = "") -> list[str]:
    """The ids that it registers, or that other code has registered for its package before."""
    _expect_installed(module, module)
    found = run(module, function)
    package = module.partition(".")[0]
    return sorted(
        found | {name for name, spec in gymnasium.registry.items() if _package_of(spec.entry_point) == package}
    )


def unknown(identifier: str, source: str) -> ConfigError:
    """The error for an id that is not registered after `source` did what it does."""
    if source:
        return ConfigError(f"importing {source!r} does not register {identifier!r}: {_hint(identifier, source)}")
    reason = f"Gymnasium has no environment {identifier!r}:"
    for start, (module, suite) in BUNDLED.items():
        if identifier.startswith(start):
            ways = f"write gym:{module}:{identifier}, or take the suite {suite} (`dreamfleet envs {suite}`)"
            return ConfigError(f"{reason} it is one of {module}: {ways}")
    space = identifier.rpartition("/")[0]
    known = [name for name in gymnasium.registry if name.rpartition("/")[0] == space]
    hint = did_you_mean(closest_names(identifier, known, 3, 0.5), "`dreamfleet envs gym` lists those known.")
    return ConfigError(f"{reason} {hint} One that another package registers is written gym:PACKAGE:{identifier}")


def other_ways(module: str, identifier: str = "") -> str:
    """Which submodule or function of a package may register environments, or this one; empty if none is found."""
    found = sys.modules[module]
    names, registers = _submodules(found, identifier)
    if names:
        return f"its module {names[0]!r} names it: write gym:{names[0]}:{identifier}"
    if functions := _functions(found):
        return f"its function {functions[0]} may: try gym:{module}:{functions[0]}:{identifier or 'ID'}"
    if registers:
        name = min(registers, key=len)
        return f"its module {name!r} registers environments: try gym:{name}:{identifier or 'ID'}"
    return ""


def _hint(identifier: str, source: str) -> str:
    module, _, function = source.partition(":")
    ids = registered_by(module, function)
    if close := closest_names(identifier, ids, 1, 0.7, ignore_case=True):
        return did_you_mean(close, "", lambda name: f"gym:{source}:{name}")
    ways = "" if function else other_ways(module, identifier)
    if ways:
        return ways
    if ids:
        return f"`dreamfleet envs gym:{source}` lists the {len(ids)} that it registers"
    return "it registers no environment at all: look into its documents for the module that does"


def _expect_installed(module: str, task: str) -> None:
    package = module.partition(".")[0]
    if package in sys.modules or importlib.util.find_spec(package) is not None:
        return
    name = _importable(package)
    if name is None:
        raise ConfigError(
            f"environment {task!r}: cannot import {package!r}: install it, or write gym:PACKAGE:ID with the name by "
            "which Python imports the package"
        )
    right = f"gym:{name}{task.removeprefix(package)}"
    raise ConfigError(f"environment {task!r}: {package!r} is imported as {name!r}: write {right}")


def _call(module: ModuleType, function: str) -> None:
    called = getattr(module, function, None)
    if not callable(called):
        functions = _functions(module)
        hint = f"it has {', '.join(functions)}" if functions else "name one that registers environments"
        raise ConfigError(f"{module.__name__!r} has no function {function!r}: {hint}")
    try:
        called()
    except Exception as error:
        raise ConfigError(f"{module.__name__}.{function}() raised {type(error).__name__}: {error}") from error


def _importable(package: str) -> str | None:
    """The module of a package that was named as it is installed."""
    name = package.replace("-", "_")
    if name != package and importlib.util.find_spec(name.partition(".")[0]) is not None:
        return name
    for module, distributions in importlib.metadata.packages_distributions().items():
        if not module.startswith("_") and any(_normal(package) == _normal(each) for each in distributions):
            return module
    return None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _package_of(entry_point: Any) -> str:
    module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", None) or ""
    return module.partition(":")[0].partition(".")[0]


def _functions(module: ModuleType) -> list[str]:
    """Those that look as if they registered environments, and can be called without arguments."""
    package = module.__name__.partition(".")[0]
    return [
        name
        for name, value in vars(module).items()
        if "register" in name.lower()
        and not name.startswith("_")
        and inspect.isfunction(value)
        and value.__module__.partition(".")[0] == package
        and all(
            each.default is not each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
            for each in inspect.signature(value).parameters.values()
        )
    ]


def _submodules(module: ModuleType, identifier: str) -> tuple[list[str], list[str]]:
    """Modules below it, whose source names the id, and those that register anything. None is imported."""
    names, registers = [], []
    for name, file in _sources(module):
        try:
            text = file.read_text(errors="replace") if file.stat().st_size <= MAX_BYTES else ""
        except OSError:
            continue
        if REGISTERS.search(text) and "gym" in text:
            registers.append(name)
            if identifier and re.search(rf"['\"]{re.escape(identifier)}['\"]", text):
                names.append(name)
    return sorted(names, key=len), registers


def _sources(module: ModuleType) -> Iterator[tuple[str, Path]]:
    count = 0
    for root in map(Path, getattr(module, "__path__", ())):
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            name = ".".join((module.__name__, *(part for part in parts if part != "__init__")))
            count += 1
            if name != module.__name__ and "test" not in name and count <= MAX_FILES:
                yield name, file
