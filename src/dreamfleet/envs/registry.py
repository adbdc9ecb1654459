"""Finds an environment by name: a built-in one, or a user's own as `package.module:factory`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.imports import import_factory
from dreamfleet.core.interfaces import Env
from dreamfleet.envs.dummy import Dummy

BUILT_IN: dict[str, Callable[..., Env]] = {"dummy": Dummy}


def make_env(name: str, index: int, seed: int, kwargs: Mapping[str, Any], mode: str = "train") -> Env:
    """Builds environment number `index` of a run.

    Built-in environments are seeded from (run seed, mode, index). A user's factory gets its own keyword arguments and
    nothing else.
    """
    factory = find_factory(name)
    if name in BUILT_IN:
        sequence = np.random.SeedSequence([seed, mode == "eval", index])
        kwargs = {"seed": int(sequence.generate_state(1)[0]), **kwargs}
    try:
        inspect.signature(factory).bind(**kwargs)
    except TypeError as error:
        raise ConfigError(f"environment {name!r} does not take env.kwargs {dict(kwargs)}: {error}") from error
    return factory(**kwargs)


def find_factory(name: str) -> Callable[..., Env]:
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" not in name:
        close = difflib.get_close_matches(name, BUILT_IN, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(BUILT_IN))}"
        raise ConfigError(f"unknown environment {name!r}: {hint} A user's own is written package.module:factory")
    return import_factory("environment", name)
