"""Any environment that is registered with Gymnasium."""

from __future__ import annotations

from typing import Any

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.gym.arguments import with_tuples
from dreamfleet.envs.options import EnvOptions


def make(task: str, options: EnvOptions, seed: int, /, num_envs: int = 1, **kwargs: Any) -> Any:
    """`task` is an id, `module:id` where importing the module registers it, or `module:function:id` where a call does.

    With `options.vector` it is made by `gymnasium.make_vec`, with `num_envs` environments.
    """
    import gymnasium

    from dreamfleet.envs.gym.registration import register

    identifier, source = register(task)
    spec = _find_spec(identifier, source)
    # It warns of the first steps only. The fleet checks every step, and `dreamfleet check-env` explains.
    unchecked = {"disable_env_checker": True}
    try:
        kwargs = with_tuples(_constructor(spec), kwargs)
        if not options.vector:
            return gymnasium.make(identifier, **{**unchecked, **kwargs})
        custom = kwargs.get("vectorization_mode", "vector_entry_point") == "vector_entry_point"
        if custom and spec.vector_entry_point is not None:
            unchecked = {}  # not one environment per row, so there is none to check
        return gymnasium.make_vec(identifier, num_envs=num_envs, **{**unchecked, **kwargs})
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"environment {task!r}: {error}") from error
    except ImportError as error:  # of its module, which is imported only here
        raise ConfigError(f"environment {task!r} cannot be imported: {error}: install what it needs") from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ConfigError(f"environment {task!r} does not take these env.kwargs: {error}") from error


def _constructor(spec: Any) -> Any:
    from gymnasium.envs.registration import load_env_creator

    return load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point


def tasks() -> list[str]:
    """What Gymnasium brings along; other packages register more when they are imported."""
    import gymnasium

    return sorted(gymnasium.registry)


def _find_spec(identifier: str, source: str) -> Any:
    import gymnasium

    from dreamfleet.envs.gym.registration import unknown

    try:
        return gymnasium.spec(identifier)
    except gymnasium.error.Error as error:
        if identifier in gymnasium.registry:
            raise
        raise unknown(identifier, source) from error
