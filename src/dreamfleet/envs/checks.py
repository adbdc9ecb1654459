"""Holds an environment to its declared spaces, on every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dreamfleet.core.errors import EnvError, SpaceMismatch
from dreamfleet.core.interfaces import Env
from dreamfleet.core.spaces import Space

FLAGS = ("reward", "is_first", "is_last", "is_terminal")
# What the fleet adds to a step on its way to the agent.
TAKEN = {"slot", "stream", "known", "stepid", "consec"}


class CheckSpaces:
    """Passes steps through and raises `SpaceMismatch` on the first observation that breaks its space.

    Errors begin with `name`, which says which environment it is.
    """

    def __init__(self, env: Env, name: str) -> None:
        _check_keys(env, name)
        self._env = env
        self._name = name
        self.obs_space: Mapping[str, Space] = dict(env.obs_space)
        self.act_space: Mapping[str, Space] = dict(env.act_space)

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        obs = self._env.step(action)
        if obs.keys() != self.obs_space.keys():
            differ = sorted(obs.keys() ^ self.obs_space.keys())
            raise SpaceMismatch(f"{self._name}: observation and obs_space differ in the keys {differ}")
        for key, space in self.obs_space.items():
            violation = space.violation(obs[key])
            if violation:
                raise SpaceMismatch(
                    f"{self._name}: observation {key!r} has {violation}: "
                    f"return what obs_space declares, {space}, or declare what step returns"
                )
        return obs

    def close(self) -> None:
        self._env.close()


def _check_keys(env: Env, name: str) -> None:
    """Observation and action travel side by side, together with the fleet's own keys."""
    obs, act = env.obs_space.keys(), env.act_space.keys()
    missing = [key for key in FLAGS if key not in obs]
    if missing:
        raise EnvError(f"{name} lacks {missing} in its obs_space: add them")
    if "reset" not in act:
        raise EnvError(f"{name} lacks 'reset' in its act_space: add it as a bool")
    taken = sorted((obs | act) & TAKEN)
    if taken:
        raise EnvError(f"{name} uses the keys {taken}, which the fleet needs for itself: rename them")
    shared = sorted(obs & act)
    if shared:
        raise EnvError(f"{name} has {shared} in both its obs_space and its act_space: rename one of them")
