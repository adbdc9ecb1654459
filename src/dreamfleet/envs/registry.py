"""Finds an environment by name, `SUITE:TASK` or a user's own `package.module:factory`, and builds it."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.imports import import_factory
from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.envs.adapt import adapt
from dreamfleet.envs.catalog import SUITES, load_suite
from dreamfleet.envs.options import EnvOptions

NO_OPTIONS = EnvOptions()


class Found(NamedTuple):
    """What a name leads to."""

    factory: Callable[..., Any]  # called with env.kwargs
    repeats: bool = False  # applies the action repeat itself


def make_env(
    name: str,
    index: int,
    seed: int,
    kwargs: Mapping[str, Any],
    mode: str = "train",
    *,
    options: EnvOptions = NO_OPTIONS,
    room: int = 1,
    restart: int = 0,
    notes: list[str] | None = None,
) -> Env | EnvBatch:
    """Builds environment number `index` of a run.

    It is seeded from (run seed, mode, index, number of its restarts). One that is vectorised holds the environments
    from `index` on, up to `room` of them where it lets us choose. `notes` takes what a user should know, such as that
    images are resized.
    """
    entropy = [seed, int(mode == "eval"), index] + [restart] * (restart > 0)
    own_seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    found = find_env(name, options, own_seed)
    kwargs = {**_wanted(found.factory, seed=own_seed, index=index, num_envs=room), **kwargs}
    try:
        inspect.signature(found.factory).bind(**kwargs)
    except TypeError as error:
        raise ConfigError(f"environment {name!r} does not take env.kwargs {dict(kwargs)}: {error}") from error
    made = found.factory(**kwargs)
    if found.repeats:
        options = replace(options, repeat=0)
    return adapt(made, name, options, own_seed, notes if notes is not None else [])


def find_env(name: str, options: EnvOptions = NO_OPTIONS, seed: int = 0) -> Found:
    """Raises `ConfigError` where the name leads nowhere, with the closest one that does."""
    suite, colon, task = name.partition(":")
    if suite in SUITES:
        task = task or SUITES[suite].default
        if not task:
            raise ConfigError(f"environment {name!r} names no task: write {suite}:TASK; `dreamfleet envs` lists them")
        return Found(partial(load_suite(suite).make, task, options, seed), SUITES[suite].repeats)
    if colon and _importable(suite):
        return Found(import_factory("environment", name))
    close = difflib.get_close_matches(suite, SUITES, 1)
    if close or not colon:
        hint = f"did you mean {close[0] + colon + task!r}?" if close else f"known are {', '.join(sorted(SUITES))}."
        raise ConfigError(f"unknown environment {name!r}: {hint} A user's own is written package.module:factory")
    return Found(import_factory("environment", name))  # says what it cannot import


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _wanted(factory: Callable[..., Any], **offered: Any) -> dict[str, Any]:
    """Those of `offered` that the factory has a parameter for. One that takes any keyword gets none of them."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a built-in callable may have no signature
        return {}
    positional_only = inspect.Parameter.POSITIONAL_ONLY
    return {
        key: value
        for key, value in offered.items()
        if key in parameters and parameters[key].kind is not positional_only
    }
