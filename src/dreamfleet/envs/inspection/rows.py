"""Steps an environment, one or vectorised, with random actions, and holds what it returns to the contract."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.checks import CheckBatch, CheckSpaces
from dreamfleet.envs.inspection.violations import UnusableStep, Violations
from dreamfleet.envs.registry import Made

if TYPE_CHECKING:
    from dreamfleet.envs.readings import Reading

Row = Mapping[str, Any]


class Rows:
    """An environment as a list of rows; a single one has one. A row whose episode has ended begins another one."""

    def __init__(self, env: Env | EnvBatch, watched: Any, found: Violations) -> None:
        self.env = env
        self.count = env.num_envs if isinstance(env, EnvBatch) else 1
        self.readings: Mapping[str, Reading] = getattr(env, "readings", {})
        self.resets = np.ones(self.count, bool)  # rows whose next step begins an episode
        self._watched = watched  # None for an environment of our own interface
        self._found = found
        self.step_s = 0.0  # what the environment took for the last step, without being watched

    @property
    def vectorised(self) -> int | None:
        return self.count if isinstance(self.env, EnvBatch) else None

    def step(self, rng: np.random.Generator) -> list[Row]:
        """One row for each environment, and further ones for those that have begun another episode already."""
        actions = {key: space.sample(rng, (self.count,)) for key, space in self.env.act_space.items()}
        actions["reset"] = self.resets.copy()
        if not isinstance(self.env, EnvBatch):
            obs = self._mapping(self._timed({key: value[0] for key, value in actions.items()}))
            self.resets[:] = _flag(obs, "is_last")
            return [obs]
        rows = self._split(self._timed(actions))
        begun = np.asarray(self.env.begun())
        self.resets[:] = [_flag(obs, "is_last") for obs in rows]
        self.resets &= ~begun
        return rows

    def begun(self) -> dict[int, Row]:
        """First observations that came together with the last ones before them."""
        if not isinstance(self.env, EnvBatch) or not (begun := np.asarray(self.env.begun())).any():
            return {}
        rows = self._split(self.env.first())
        return {number: rows[number] for number in np.flatnonzero(begun).tolist()}

    def _timed(self, action: Any) -> Any:
        watching_s = self._watched.overhead_s if self._watched is not None else 0.0
        begin = time.perf_counter()
        obs = self.env.step(action)
        self.step_s = time.perf_counter() - begin
        if self._watched is not None:
            self.step_s -= self._watched.overhead_s - watching_s
        return obs

    def _mapping(self, obs: Any) -> Row:
        if isinstance(obs, Mapping):
            return obs
        wanted = "a dict with the keys of obs_space"
        self._found.add("type", "step", f"returns a {type(obs).__name__} instead of {wanted}", f"return {wanted}")
        raise UnusableStep

    def _split(self, batch: Any) -> list[Row]:
        batch = self._mapping(batch)
        for key, value in batch.items():
            shape = np.shape(value)
            if shape[:1] != (self.count,):
                problem = f"shape {shape}, whose first axis is not that of {self.count} environments"
                self._found.add("shape", f"observation {key!r}", problem, "return one row for each environment")
                raise UnusableStep
        return [{key: value[number] for key, value in batch.items()} for number in range(self.count)]


def make_rows(made: Made, found: Violations, notes: list[str]) -> Rows:
    """A Gymnasium environment is watched from in front of the adapter, which would hide some of what it does."""
    watched, made = None, made.prepared()
    if is_gymnasium(made.made):
        from dreamfleet.envs.inspection.watched import Watched

        watched = Watched(made.made, found)
        made = made._replace(made=watched)
    env = made.adapted(notes)
    if isinstance(env, EnvBatch):
        CheckBatch(env, made.name)  # for its complaints about the keys
    else:
        CheckSpaces(env, made.name)
    return Rows(env, watched, found)


def is_gymnasium(made: Any) -> bool:
    return hasattr(made, "observation_space") and hasattr(made, "action_space") and not hasattr(made, "obs_space")


def check_row(obs: Row, spaces: Mapping[str, Space], begins: bool, found: Violations) -> None:
    """`begins`: this row must be the first of an episode, and must not be one otherwise."""
    missing = [key for key in spaces if key not in obs]
    if missing:
        found.add("missing", "observation", f"lacks {missing}", "return every key that obs_space declares")
    undeclared = [key for key in obs if key not in spaces and not key.startswith("log/")]
    if undeclared:
        found.add("undeclared", "observation", f"has {undeclared} besides", "declare them in obs_space or drop them")
    for key, space in spaces.items():
        violation = space.violation(obs[key]) if key in obs else None
        if violation:
            fix = f"return what obs_space declares, {space}, or declare what step returns"
            found.add(_kind(violation), f"observation {key!r}", violation, fix)
    _check_flags(obs, begins, found)


def _check_flags(obs: Row, begins: bool, found: Violations) -> None:
    first = _flag(obs, "is_first")
    if begins and not first:
        fix = "set is_first in the step that begins an episode: on action['reset'] and after a last step"
        found.add("flag", "is_first", "false at the start of an episode", fix)
    if first and not begins:
        fix = "set is_last in the step before, or is_first only where an episode begins"
        found.add("flag", "is_first", "true in the middle of an episode", fix)
    if _flag(obs, "is_terminal") and not _flag(obs, "is_last"):
        found.add("flag", "is_terminal", "true without is_last", "set is_last too")
    if first and np.any(obs.get("reward", 0)):
        found.add("reward", "reward", "not 0 in the first step of an episode", "nothing was done yet: return 0")


def _flag(obs: Row, key: str) -> bool:
    return bool(np.any(obs.get(key, False)))


def _kind(violation: str) -> str:
    word = violation.partition(" ")[0].lower()
    return {"value": "bounds"}.get(word, word)
