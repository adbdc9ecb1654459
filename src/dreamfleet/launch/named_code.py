"""The environment code that a fleet's configuration names and remote workers import."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from dreamfleet.config.schema import Config
from dreamfleet.core.errors import BadInput
from dreamfleet.envs.catalog import SUITES
from dreamfleet.supervision import terminal


def named_code(config: Config) -> list[str]:
    """Return the names of the environment and its wrappers."""
    wrappers = [wrapper if isinstance(wrapper, str) else next(iter(wrapper)) for wrapper in config.env.wrappers]
    return [config.env.name, *wrappers]


def expect_pinned(config: Config, pinned: Sequence[str]) -> None:
    """Raise BadInput if the configuration names other code than `pinned`. An empty list allows everything."""
    for name in named_code(config) if pinned else ():
        if name not in pinned:
            raise BadInput(
                f"the fleet file names {name!r}, but --env allows only {', '.join(map(repr, pinned))}: "
                f"add --env {name} if you trust it"
            )


def say_imports(config: Config) -> None:
    for name in named_code(config):
        terminal.print_line(f"dreamfleet: the fleet file names {name}: {_origin(name)}")


def _origin(name: str) -> str:
    """Return the location of the code without importing it, which would run it."""
    module = next((part for part in name.split(":")[:-1] if part not in SUITES), None)
    if module is None:
        return f"provided by suite {name.partition(':')[0]}"
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return f"module {module} is not on this machine"
    place = spec.origin or next(iter(spec.submodule_search_locations or ()), "?")
    return f"module {module} will be imported from {place}"
