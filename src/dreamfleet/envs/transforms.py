"""What `env.drop`, `env.text`, `env.pad`, `env.clip` and `env.reward_weights` do, around an environment of any kind.

It comes before the environment is adapted, and before `check-env` looks at it: both see what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.interfaces import Arrays, Env, EnvBatch
from dreamfleet.core.spaces import Space, observed
from dreamfleet.envs.clip import make_clip
from dreamfleet.envs.gym.value_types import FINAL_OBS
from dreamfleet.envs.key_patterns import select
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.reward_parts import Weighing, check_declared, declared_parts
from dreamfleet.envs.wrappers import EnvWrapper


def prepare(made: Any, name: str, options: EnvOptions) -> tuple[Any, EnvOptions]:
    """Return the environment as the options ask for it, and the options that are left. What is none passes."""
    if isinstance(made, type):
        return made, options
    rest = replace(options, drop=(), text={}, pad={}, clip=False, reward_weights=())
    if isinstance(made, Env | EnvBatch):
        return (made if options == rest else _prepare_own(made, name, options)), rest
    if not (hasattr(made, "observation_space") and hasattr(made, "action_space")):
        return made, options
    check_declared(made, name, bool(options.reward_weights))
    return (made if options == rest else PreparedGymnasium(made, name, options)), rest


class PreparedGymnasium:
    """Has everything that the environment has, which may be vectorised; observations and rewards are as asked for."""

    def __init__(self, env: Any, name: str, options: EnvOptions) -> None:
        from gymnasium.vector.utils import batch_space

        from dreamfleet.envs.gym.encoders import Encoding

        self._env = env
        vectorised = hasattr(env, "single_observation_space")
        rows = int(env.num_envs) if vectorised else None
        space = env.single_observation_space if vectorised else env.observation_space
        self._encode_one = self._encode = Encoding(space, name, options)
        self.observation_space = self._encode_one.space
        if rows is not None:
            self._encode = Encoding(space, name, options, rows)
            self.single_observation_space = self._encode.space
            self.observation_space = batch_space(self._encode.space, rows)
        self._weigh = Weighing(options.reward_weights, name, rows) if options.reward_weights else None
        if self._weigh is not None:
            self._weigh.check(declared_parts(env))
            self.reward_space = None  # not the environment's, whose parts are weighed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **kwargs: Any) -> Any:
        result = self._env.reset(**kwargs)
        if not isinstance(result, tuple) or not result:
            return result  # for the adapter to name
        return self._encode(result[0]), *result[1:]

    def step(self, action: Any) -> Any:
        result = self._env.step(action)
        if not isinstance(result, tuple) or len(result) < 2:
            return result
        obs, reward, *others = result
        if others and isinstance(others[-1], Mapping) and others[-1].get(FINAL_OBS) is not None:
            others[-1] = {**others[-1], FINAL_OBS: self._final(others[-1][FINAL_OBS])}
        return self._encode(obs), reward if self._weigh is None else self._weigh(reward), *others

    def _final(self, final: Any) -> Any:
        """The last observations of the rows that begin another episode in this step, as one or row by row."""
        if not isinstance(final, np.ndarray) or final.dtype != object:
            return self._encode(final)
        rows = np.empty(len(final), object)
        rows[:] = [None if row is None else self._encode_one(row) for row in final]
        return rows


def _prepare_own(env: Env | EnvBatch, name: str, options: EnvOptions) -> Env | EnvBatch:
    asked = {"env.text": options.text, "env.pad": options.pad, "env.reward_weights": options.reward_weights}
    for option, value in asked.items():
        if value:
            raise ConfigError(
                f"{option} is for environments of Gymnasium, and {name} has Dreamfleet's own interface, with arrays "
                "and one reward: unset it"
            )
    chosen = _Chosen(env.obs_space, name, options, env.num_envs if isinstance(env, EnvBatch) else None)
    return PreparedBatch(env, chosen) if isinstance(env, EnvBatch) else PreparedEnv(env, chosen)


class _Chosen:
    """The observations that are left of an environment of our own interface, clipped if that is asked for."""

    def __init__(self, spaces: Mapping[str, Space], name: str, options: EnvOptions, rows: int | None) -> None:
        keys = list(observed(spaces))
        self._dropped = select("env.drop", options.drop, keys, f"observation of {name}")
        if self._dropped and len(self._dropped) == len(keys):
            raise ConfigError(f"env.drop={list(options.drop)} leaves no observation of {name}: keep one of them")
        self.spaces = {key: space for key, space in spaces.items() if key not in self._dropped}
        lead = () if rows is None else (rows,)
        self._clips = {
            key: make_clip(space.low, space.high - 1 if space.discrete else space.high, (*lead, *space.shape))
            for key, space in self.spaces.items()
            if options.clip and key in keys
        }

    def __call__(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in obs.items() if key not in self._dropped}
        for key, clip in self._clips.items():
            if key in kept:
                kept[key] = clip(kept[key])
        return kept


class PreparedEnv(EnvWrapper):
    def __init__(self, env: Env, chosen: _Chosen) -> None:
        super().__init__(env)
        self._chosen = chosen
        self.obs_space = chosen.spaces

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._chosen(self._env.step(action))


class PreparedBatch:
    def __init__(self, env: EnvBatch, chosen: _Chosen) -> None:
        self._env = env
        self._chosen = chosen
        self.name: str = getattr(env, "name", None) or type(env).__name__
        self.num_envs = env.num_envs
        self.obs_space: Mapping[str, Space] = chosen.spaces
        self.act_space: Mapping[str, Space] = dict(env.act_space)

    def step(self, actions: Mapping[str, np.ndarray]) -> Arrays:
        return self._chosen(self._env.step(actions))

    def begun(self) -> np.ndarray:
        return self._env.begun()

    def first(self) -> Arrays:
        return self._chosen(self._env.first())

    def close(self) -> None:
        self._env.close()
