"""`env.wrappers`: wrappers of Gymnasium, of a package or of the user, around an environment before it is adapted."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from dreamfleet.core.errors import ConfigError, EnvError
from dreamfleet.core.import_path import import_factory
from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.envs.gym.arguments import with_tuples

SPACES = ("observation_space", "action_space")


def wrap(made: Any, name: str, wrappers: Sequence[str | Mapping[str, Mapping[str, Any]]]) -> Any:
    """Return the environment inside of the wrappers, the first of them the innermost.

    A wrapper is called with the environment and its keyword arguments. Raises `ConfigError` for one that does not exist
    or does not take them, and `EnvError` for one that fails.
    """
    if wrappers and isinstance(made, Env | EnvBatch):
        raise ConfigError(
            f"env.wrappers is for environments of Gymnasium, and {name} has Dreamfleet's own interface: unset it and "
            "change what the factory returns"
        )
    for wrapper in wrappers:
        target, arguments = (wrapper, {}) if isinstance(wrapper, str) else next(iter(wrapper.items()))
        made = _apply(target, arguments, made, name)
    return made


def _apply(target: str, arguments: Mapping[str, Any], made: Any, name: str) -> Any:
    factory = import_factory("env.wrappers:", target)
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # as some built-in ones have none
        pass
    else:
        try:
            signature.bind(made, **arguments)
        except TypeError as error:
            taken = ", ".join(list(signature.parameters)[1:]) or "no arguments"
            raise ConfigError(f"env.wrappers: {target}: {error}: it takes {taken}") from None
    try:
        wrapped = factory(made, **with_tuples(factory, arguments))
    except Exception as error:
        raise EnvError(f"{name}: env.wrappers: {target} failed: {_reason(error)}{_hint(factory, made)}") from error
    if not all(hasattr(wrapped, space) for space in SPACES):
        raise EnvError(f"{name}: env.wrappers: {target} returned a {type(wrapped).__name__}: return an environment")
    return wrapped


def _reason(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({where.filename}, line {where.lineno})"


def _hint(factory: Any, made: Any) -> str:
    import gymnasium

    single = isinstance(factory, type) and issubclass(factory, gymnasium.Wrapper)
    if not single or not hasattr(made, "single_observation_space"):
        return ""
    return ": the environment is vectorised, which takes wrappers such as those of gymnasium.wrappers.vector"
