"""Steps an environment, one or vectorised, with random actions, through the adapter and the checks of a worker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dreamfleet.core.interfaces import EnvBatch
from dreamfleet.envs.checks import CheckBatch, CheckSpaces
from dreamfleet.envs.inspection.violations import UnusableStep, Violations
from dreamfleet.envs.registry import Made

if TYPE_CHECKING:
    from dreamfleet.envs.gym.readers import Reading

Row = Mapping[str, Any]


class EnvRows:
    """An environment as a list of rows; a single one has one. A row whose episode has ended begins another one."""

    def __init__(self, env: CheckSpaces | CheckBatch) -> None:
        self.env = env
        self.count = env.num_envs if isinstance(env, CheckBatch) else 1
        self.readings: Mapping[str, Reading] = env.readings
        self.resets = np.ones(self.count, bool)  # rows whose next step begins an episode
        self.step_s = 0.0  # what the last step took

    @property
    def vectorised(self) -> int | None:
        return self.count if isinstance(self.env, CheckBatch) else None

    def step(self, rng: np.random.Generator) -> list[Row]:
        """One row for each environment, and further ones for those that have begun another episode already."""
        actions = {key: space.sample(rng, (self.count,)) for key, space in self.env.act_space.items()}
        actions["reset"] = self.resets.copy()
        if isinstance(self.env, CheckSpaces):
            obs = self._timed({key: value[0] for key, value in actions.items()})
            self.resets[:] = _flag(obs, "is_last")
            return [obs]
        rows = self._split(self._timed(actions))
        begun = np.asarray(self.env.begun())
        self.resets[:] = [_flag(obs, "is_last") for obs in rows]
        self.resets &= ~begun
        return rows

    def begun(self) -> dict[int, Row]:
        """First observations that came together with the last ones before them."""
        if isinstance(self.env, CheckSpaces) or not (begun := np.asarray(self.env.begun())).any():
            return {}
        rows = self._split(self.env.first())
        return {number: rows[number] for number in np.flatnonzero(begun).tolist()}

    def _timed(self, action: Any) -> Row:
        begin = time.perf_counter()
        obs = self.env.step(action)
        self.step_s = time.perf_counter() - begin
        if not isinstance(obs, Mapping):
            raise UnusableStep
        return obs

    def _split(self, batch: Row) -> list[Row]:
        if any(np.shape(value)[:1] != (self.count,) for value in batch.values()):
            raise UnusableStep
        return [{key: value[number] for key, value in batch.items()} for number in range(self.count)]


def make_rows(made: Made, found: Violations, notes: list[str]) -> EnvRows:
    env = made.adapted(notes)
    if isinstance(env, EnvBatch):
        return EnvRows(CheckBatch(env, made.name, found.add_problem))
    return EnvRows(CheckSpaces(env, made.name, found.add_problem))


def check_flags(obs: Row, begins: bool, found: Violations) -> None:
    """`begins`: this row must be the first of an episode, and must not be one otherwise."""
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
