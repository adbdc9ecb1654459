"""Finds what a user names on the command line as `package.module:attribute`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dreamfleet.core.errors import ConfigError


def import_factory(kind: str, name: str) -> Callable[..., Any]:
    """The callable behind `name`; `kind` says in messages what it is for. An error inside the module passes through."""
    module_name, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute, None)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{kind} {name!r}: cannot import {module_name!r}: {error}") from error
    if not callable(factory):
        raise ConfigError(f"{kind} {name!r}: {module_name!r} has no callable {attribute!r}")
    return factory  # type: ignore[no-any-return]
