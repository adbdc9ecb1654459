"""Makes what a factory returned into an environment of ours."""

from __future__ import annotations

from typing import Any

from dreamfleet.core.errors import ConfigError, EnvError
from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.envs.images import check_size
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.wrappers import (
    ActionRepeat,
    NormalizeActions,
    ResizeImages,
    TimeLimit,
    UnifyDtypes,
    image_spaces,
)


def adapt(made: Any, name: str, options: EnvOptions, seed: int, notes: list[str]) -> Env | EnvBatch:
    """Accepts a `gymnasium.Env`, a `gymnasium.vector.VectorEnv`, or an `Env` or `EnvBatch` of our own.

    Gymnasium is recognised by its attributes, so that environments that only follow its interface work too, and is
    imported only for those.
    """
    if isinstance(made, type):
        raise _unusable(made, name)
    if options.read and isinstance(made, Env | EnvBatch):
        raise ConfigError(
            f"env.read is for Gymnasium's spaces, and {name} declares those of dreamfleet.core.spaces, where uint8 of "
            "rank 3 is an image, other integers are classes and floats are numbers: unset env.read"
        )
    if isinstance(made, EnvBatch):
        return _adapt_batch(made, name, options)
    if isinstance(made, Env):
        return _adapt_own(made, options)
    if hasattr(made, "single_observation_space") and hasattr(made, "single_action_space"):
        from dreamfleet.envs.gym.vector_env import GymnasiumBatch

        return GymnasiumBatch(made, name, options, seed, notes)
    if hasattr(made, "observation_space") and hasattr(made, "action_space"):
        from dreamfleet.envs.gym.env import GymnasiumEnv

        env = GymnasiumEnv(made, name, options, seed, notes)
        return TimeLimit(env, options.time_limit) if options.time_limit else env
    raise _unusable(made, name)


def _adapt_own(env: Env, options: EnvOptions) -> Env:
    """Wraps what needs it. Images keep the size that the environment chose, unless the run sets one."""
    if options.repeat > 1:
        env = ActionRepeat(env, options.repeat)
    if NormalizeActions.needed(env):
        env = NormalizeActions(env)
    if UnifyDtypes.needed(env):
        env = UnifyDtypes(env)
    if options.size is not None:
        size = check_size(options.size)
        if any(space.shape[:2] != size for space in image_spaces(env).values()):
            env = ResizeImages(env, size, options.resize)
    return TimeLimit(env, options.time_limit) if options.time_limit else env


def _adapt_batch(env: EnvBatch, name: str, options: EnvOptions) -> EnvBatch:
    wanted = {"env.size": options.size, "env.repeat": options.repeat > 1, "env.time_limit": options.time_limit}
    for key, value in wanted.items():
        if value:
            raise EnvError(
                f"{key} does not work with {name}, which steps several environments together: unset it and give the "
                "factory an argument for it, through env.kwargs"
            )
    return env


def _unusable(made: Any, name: str) -> EnvError:
    what = f"the class {made.__qualname__}, not an instance of it" if isinstance(made, type) else _describe(made)
    return EnvError(
        f"the factory {name} returned {what}: return a gymnasium.Env, a gymnasium.vector.VectorEnv, or an object with "
        "obs_space, act_space, step and close"
    )


def _describe(made: Any) -> str:
    if made is None:
        return "None"
    kind = type(made)
    return f"a {kind.__name__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"
