"""Libraries that a sink needs and that may not be there."""

from __future__ import annotations

import importlib
from typing import Any

from dreamfleet.metrics.sinks.isolated import NotInstalled


def require(label: str, module: str, install: str) -> Any:
    """The module; the error of a missing one names the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # it is there, but something that it needs is not
            raise
        raise NotInstalled(f"{label} is not installed, training goes on without it: {install}") from None
