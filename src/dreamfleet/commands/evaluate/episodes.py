"""Plays whole episodes in several environments at once. Knows environments and a policy, not where they come from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dreamfleet.core.errors import EnvError
from dreamfleet.core.interfaces import Arrays, Env, EnvBatch
from dreamfleet.core.spaces import Space, without_log

Act = Callable[[Arrays, Any], tuple[Mapping[str, np.ndarray], Any]]  # observations, state -> actions, state
Watch = Callable[[Mapping[str, np.ndarray]], None]


@dataclass
class Episode:
    score: float = 0.0
    length: int = 0


class SequentialEnvs:
    """Environments that step one after the other, as if they were one `EnvBatch` that begins the next episode within
    the step that ends the last one.
    """

    def __init__(self, envs: Sequence[Env]) -> None:
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        self.obs_space, self.act_space = self.envs[0].obs_space, self.envs[0].act_space
        self.retired: set[int] = set()  # rows that stand still from now on
        self._keys = list(without_log(self.obs_space))
        self._last: list[Mapping[str, Any]] = [{}] * self.num_envs

    def step(self, actions: Mapping[str, np.ndarray]) -> Arrays:
        for row, env in enumerate(self.envs):
            if row not in self.retired:
                self._last[row] = env.step({key: value[row] for key, value in actions.items()})
        return self._stack()

    def begun(self) -> np.ndarray:
        """Nothing begins before `first` is called, so that the end of an episode can be looked at."""
        return np.array([bool(one["is_last"]) and row not in self.retired for row, one in enumerate(self._last)])

    def first(self) -> Arrays:
        for row in np.flatnonzero(self.begun()):
            self._last[row] = self.envs[row].step(idle_action(self.act_space))
        return self._stack()

    def close(self) -> None:
        for env in self.envs:
            with contextlib.suppress(Exception):  # the episodes are played: what fails now changes nothing
                env.close()

    def _stack(self) -> Arrays:
        missing = [key for key in self._keys if any(key not in one for one in self._last)]
        if missing:
            raise EnvError(f"the environment's step has no {missing[0]!r}: `dreamfleet check-env` says more")
        spaces = self.obs_space
        return {key: np.stack([np.asarray(one[key], spaces[key].dtype) for one in self._last]) for key in self._keys}


def idle_action(act_space: Mapping[str, Space], rows: tuple[int, ...] = ()) -> dict[str, Any]:
    """One that begins an episode: nothing of it counts but `reset`."""
    idle: dict[str, Any] = {}
    for key, space in act_space.items():
        inside = np.clip(0, space.low, np.maximum(space.high - 1, space.low) if space.discrete else space.high)
        idle[key] = np.broadcast_to(inside.astype(space.dtype), (*rows, *space.shape))
    return {**idle, "reset": np.ones(rows, bool)}


def share(episodes: int, envs: int) -> list[int]:
    """How many episodes each environment plays. It is settled before the first step, so that short episodes, of which
    more end in the same time, are not favoured.
    """
    return [episodes // envs + (row < episodes % envs) for row in range(envs)]


def play(envs: SequentialEnvs | EnvBatch, act: Act, shares: Sequence[int], watch: Watch | None = None) -> list[Episode]:
    """Plays until every environment has had its share: their episodes, one environment's after the other's.

    `watch` gets every observation of the first one's first episode. Environments that step together go on, uncounted,
    until the last one has had its share.
    """
    rows = envs.num_envs
    played: list[list[Episode]] = [[] for _ in range(rows)]
    current = [Episode() for _ in range(rows)]
    obs: Arrays = dict(envs.step(idle_action(envs.act_space, (rows,))))
    begun = np.ones(rows, bool)
    state: Any = None
    if watch:
        watch(_row(obs, 0))
    while True:
        actions, state = act({**obs, "is_first": begun}, state)
        # Rows whose episode began within the last step must not begin it again.
        shown = dict(envs.step({**actions, "reset": np.zeros(rows, bool)}))
        for row in range(rows):
            if len(played[row]) == shares[row]:
                continue
            if shown["is_first"][row]:
                current[row] = Episode()
                continue
            current[row].score += float(shown["reward"][row])
            current[row].length += 1
            if row == 0 and watch and not played[0]:
                watch(_row(shown, 0))
            if shown["is_last"][row]:
                played[row].append(current[row])
                if isinstance(envs, SequentialEnvs) and len(played[row]) == shares[row]:
                    envs.retired.add(row)
        if all(len(done) == wanted for done, wanted in zip(played, shares, strict=True)):
            return [episode for done in played for episode in done]
        obs, begun = _follow(envs, shown, current)


def _follow(envs: SequentialEnvs | EnvBatch, shown: Arrays, current: list[Episode]) -> tuple[Arrays, np.ndarray]:
    """What the policy sees next: of rows that ended, the first observation of their next episode."""
    begun, is_first = np.asarray(envs.begun(), bool), np.asarray(shown["is_first"], bool)
    if not begun.any():
        return shown, is_first
    first = envs.first()
    for row in np.flatnonzero(begun):
        current[row] = Episode()
    keys = without_log(shown)
    lead = {key: begun.reshape(-1, *[1] * (shown[key].ndim - 1)) for key in keys}
    return {key: np.where(lead[key], first[key], shown[key]) for key in keys}, begun | is_first


def _row(obs: Mapping[str, np.ndarray], row: int) -> dict[str, np.ndarray]:
    return {key: value[row] for key, value in obs.items()}
