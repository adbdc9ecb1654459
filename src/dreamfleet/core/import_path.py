"""Finds what a user names on the command line as `package.module:attribute`."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from typing import Any

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.text.suggestions import closest_names, did_you_mean


def import_factory(kind: str, name: str) -> Callable[..., Any]:
    """The callable behind `name`; `kind` says in messages what it is for."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{kind} {name!r}: cannot import {module_name!r}: {error}") from error
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, SyntaxError) else f" ({where.filename}, line {where.lineno})"
        raise ConfigError(
            f"{kind} {name!r}: cannot import {module_name!r}: {type(error).__name__}: {error}{place}"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigError(f"{kind} {name!r}: {module_name!r} has no callable {attribute!r}{_reason(module, attribute)}")
    return factory  # type: ignore[no-any-return]


def _reason(module: object, attribute: str) -> str:
    if attribute and hasattr(module, attribute):
        return f": it is of type {type(getattr(module, attribute)).__name__}"
    callables = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    hint = did_you_mean(closest_names(attribute, callables), "")
    return f": {hint}" if hint else ""
