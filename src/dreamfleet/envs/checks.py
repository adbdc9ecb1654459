"""Holds an environment to its declared spaces, on every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dreamfleet.core.errors import EnvError, SpaceMismatch
from dreamfleet.core.interfaces import Env
from dreamfleet.core.spaces import Space

FLAGS = ("reward", "is_first", "is_last", "is_terminal")


class CheckSpaces:
    """Passes steps through and raises `SpaceMismatch` on the first observation that breaks its space."""

    def __init__(self, env: Env, name: str) -> None:
        missing = [key for key in FLAGS if key not in env.obs_space]
        if missing:
            raise EnvError(f"environment {name} lacks {missing} in its obs_space: add them")
        if "reset" not in env.act_space:
            raise EnvError(f"environment {name} lacks 'reset' in its act_space: add it as a bool")
        self._env = env
        self._name = name
        self.obs_space: Mapping[str, Space] = dict(env.obs_space)
        self.act_space: Mapping[str, Space] = dict(env.act_space)

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        obs = self._env.step(action)
        if obs.keys() != self.obs_space.keys():
            differ = sorted(obs.keys() ^ self.obs_space.keys())
            raise SpaceMismatch(f"environment {self._name}: observation and obs_space differ in the keys {differ}")
        for key, space in self.obs_space.items():
            violation = space.violation(obs[key])
            if violation:
                raise SpaceMismatch(
                    f"environment {self._name}: observation {key!r} has {violation}: "
                    f"return what obs_space declares, {space}, or declare what step returns"
                )
        return obs

    def close(self) -> None:
        self._env.close()
