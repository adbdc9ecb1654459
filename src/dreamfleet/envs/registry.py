"""Finds an environment by name, `SUITE:TASK` or a user's own `package.module:factory`, and builds it."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.import_path import import_factory
from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.core.text.suggestions import closest_names, did_you_mean
from dreamfleet.envs.adapter import adapt
from dreamfleet.envs.catalog import SUITES, load_suite
from dreamfleet.envs.gym.arguments import with_tuples
from dreamfleet.envs.gym.wrappers import wrap
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.transforms import prepare

NO_OPTIONS = EnvOptions()
# Annotations of suites' parameters, as they are written there.
KINDS: dict[str, tuple[Any, str]] = {
    "bool": (bool, "true or false"),
    "int": ((int, np.integer), "a whole number"),
    "float": ((int, float), "a number"),
    "str": (str, "text"),
}


class Found(NamedTuple):
    """What a name leads to."""

    factory: Callable[..., Any]  # called with env.kwargs
    repeats: bool = False  # applies the action repeat itself


class Made(NamedTuple):
    """What a factory returned, with what it takes to adapt it."""

    made: Any
    name: str
    options: EnvOptions
    seed: int

    def prepared(self) -> Made:
        """With observations and rewards as the options ask for them, but still not adapted."""
        with self.closed_on_error():
            made, options = prepare(self.made, self.name, self.options)
        return self._replace(made=made, options=options)

    def adapted(self, notes: list[str] | None = None) -> Env | EnvBatch:
        made, name, options, seed = self.prepared()
        with self.closed_on_error():
            return adapt(made, name, options, seed, notes if notes is not None else [])

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if callable(close := getattr(self.made, "close", None)):
                close()
            raise


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
    life: int = 0,
    notes: list[str] | None = None,
) -> Env | EnvBatch:
    """Builds environment number `index` of a run.

    It is seeded from (run seed, mode, index, number of its restarts, life of its worker). One that is vectorised holds
    the environments from `index` on, up to `room` of them where it lets us choose. `notes` takes what a user should
    know, such as that images are resized.
    """
    made = make_unadapted(name, index, seed, kwargs, mode, options=options, room=room, restart=restart, life=life)
    return made.adapted(notes)


def make_unadapted(
    name: str,
    index: int,
    seed: int,
    kwargs: Mapping[str, Any],
    mode: str = "train",
    *,
    options: EnvOptions = NO_OPTIONS,
    room: int = 1,
    restart: int = 0,
    life: int = 0,
) -> Made:
    """As `make_env`, but leaves the environment as its author wrote it, inside of the wrappers that a run names.

    An error of its constructor passes through.
    """
    later = [restart, life] if life else [restart] if restart else []
    entropy = [seed, int(mode == "eval"), index, *later]
    own_seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    kwargs = dict(kwargs)
    if options.vector and name.partition(":")[0] != "gym":
        raise ConfigError(
            f"env.vector=true is for gym:ID, not for {name!r}: unset it; a factory of yours may return a "
            "gymnasium.vector.VectorEnv"
        )
    if name.partition(":")[0] in SUITES and "seed" in kwargs:  # suites take theirs from here
        own_seed = _whole_seed(kwargs.pop("seed"))
    found = find_env(name, options, own_seed)
    _check_arguments(name, found.factory, kwargs, {"seed", "index", "num_envs"})
    if name.partition(":")[0] in SUITES:
        kwargs = {key: _typed(name, found.factory, key, value) for key, value in kwargs.items()}
    offered = _wanted(found.factory, seed=own_seed, index=index, num_envs=room)
    try:
        made = found.factory(**{**offered, **with_tuples(found.factory, kwargs)})
    except (TypeError, ImportError) as error:
        _explain(error, name, kwargs)
        raise
    if found.repeats:
        options = replace(options, repeat=0)
    unwrapped = Made(made, name, options, own_seed)
    with unwrapped.closed_on_error():
        return unwrapped._replace(made=wrap(made, name, options.wrappers))


def find_env(name: str, options: EnvOptions = NO_OPTIONS, seed: int = 0) -> Found:
    """Raises `ConfigError` where the name leads nowhere, with the closest one that does."""
    suite, colon, task = name.partition(":")
    if suite in SUITES:
        task = task or SUITES[suite].default
        if not task:
            raise ConfigError(
                f"environment {name!r} names no task: write {suite}:TASK; `dreamfleet envs {suite}` lists them"
            )
        return Found(partial(load_suite(suite).make, task, options, seed), SUITES[suite].repeats)
    if colon and _importable(suite):
        return Found(import_factory("environment", name))
    close = closest_names(suite, SUITES)
    if close or not colon:
        listed = f"known are {', '.join(sorted(SUITES))}."
        hint = did_you_mean(close, listed, lambda found: repr(found + colon + task))
        raise ConfigError(f"unknown environment {name!r}: {hint} A user's own is written package.module:factory")
    return Found(import_factory("environment", name))  # says what it cannot import


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
    except Exception:  # a package that raises while it is imported: there is one
        return True


def _whole_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"env.kwargs.seed={seed!r} is no seed: give a whole number from 0 on")
    return seed


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """By name; None where a callable does not say, as some built-in ones do not."""
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return None


def _wanted(factory: Callable[..., Any], **offered: Any) -> dict[str, Any]:
    """Those of `offered` that the factory has a parameter for. One that takes any keyword gets none of them."""
    parameters = _parameters(factory) or {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: value for key, value in offered.items() if key in parameters and parameters[key].kind in by_name}


def _check_arguments(name: str, factory: Callable[..., Any], kwargs: Mapping[str, Any], filled: set[str]) -> None:
    """Finds keys that the factory has no parameter for, and parameters without a value, before it is called.

    `filled` are those that get one from us.
    """
    parameters = _parameters(factory)
    if parameters is None:
        return
    kinds = {parameter.kind for parameter in parameters.values()}
    by_name = {key: p for key, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for key in kwargs:
            if key not in by_name:
                raise ConfigError(
                    f"environment {name!r} does not take env.kwargs.{key}: {_closest(key, list(by_name))}"
                )
    for key, parameter in parameters.items():
        named = key in by_name
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not variadic and not (named and (key in kwargs or key in filled)):
            remedy = f"set env.kwargs.{key}" if named else "it is positional only: give it a default"
            raise ConfigError(f"environment {name!r} needs a value for its parameter {key!r}: {remedy}")


def _typed(name: str, factory: Callable[..., Any], key: str, value: Any) -> Any:
    """The value of a suite's parameter, as its annotation asks for it: 1e4 is a whole number too."""
    parameter = (_parameters(factory) or {}).get(key)
    kind = str(parameter.annotation).removesuffix(" | None") if parameter else ""
    if kind not in KINDS:
        return value
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return int(value)
    accepted, described = KINDS[kind]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind != "bool"):
        raise ConfigError(f"environment {name!r}: env.kwargs.{key} cannot be {value!r}: expected {described}")
    return value


def _explain(error: Exception, name: str, kwargs: Mapping[str, Any]) -> None:
    """Raises `ConfigError` where the user can change what made a constructor fail."""
    suite = SUITES.get(name.partition(":")[0])
    if isinstance(error, ImportError) and suite and suite.install:
        raise ConfigError(f"environment {name!r} cannot be imported: {error}: try {suite.install}") from error
    # A factory that hands any keyword on is refused further down, in words that do not name the key to change.
    refused = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if refused and refused[1] in kwargs:
        raise ConfigError(f"environment {name!r} does not take env.kwargs.{refused[1]}: {error}") from error


def _closest(key: str, known: list[str]) -> str:
    listed = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
    return did_you_mean(closest_names(key, known), listed, lambda found: f"env.kwargs.{found}")
