"""Environments for tests of the env worker: they remember, count, step together or break on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.interfaces import Arrays
from dreamfleet.envs.builtin.dummy import Dummy
from support.counting import CountingEnv


class Echo(Dummy):
    """Remembers the actions it was given. May end its episodes earlier than its spaces allow."""

    def __init__(self, length: int, ends_after: int | None = None) -> None:
        super().__init__(length=length, size=8)
        self._length = ends_after or length
        self.actions: list[tuple[int, bool]] = []
        self.closed = False

    def step(self, action: Any) -> dict[str, Any]:
        self.actions.append((int(action["action"]), bool(action["reset"])))
        return super().step(action)

    def close(self) -> None:
        self.closed = True


class Breaking(CountingEnv):
    """Raises an error at the steps of these numbers, counted from 0."""

    def __init__(self, index: int, breaks_at: tuple[int, ...] = (), close_error: bool = False) -> None:
        super().__init__(index)
        self._breaks_at = breaks_at
        self._close_error = close_error

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if self._count + 1 in self._breaks_at:
            raise RuntimeError("the robot fell over")
        return super().step(action)

    def close(self) -> None:
        super().close()
        if self._close_error:
            raise OSError("the window is gone")


class CountingBatch:
    """Counting environments that step together, as vectorised ones do.

    With `same_step` an episode that ends is followed at once by the next one; else by the next step, as for a single
    environment.
    """

    def __init__(self, envs: list[CountingEnv], same_step: bool) -> None:
        self.envs = envs
        self.num_envs = len(envs)
        self.obs_space, self.act_space = envs[0].obs_space, envs[0].act_space
        self.closed = False
        self.resets: list[list[bool]] = []
        self._same_step = same_step
        self._begun = np.zeros(self.num_envs, bool)
        self._first: Arrays = {}

    def step(self, actions: Mapping[str, np.ndarray]) -> Arrays:
        self.resets.append(actions["reset"].tolist())
        obs = [env.step({key: value[row] for key, value in actions.items()}) for row, env in enumerate(self.envs)]
        last = np.array([one["is_last"] for one in obs])
        self._begun = last & self._same_step
        idle = {"action": np.int32(0), "reset": np.bool_(True)}
        first = [env.step(idle) if begun else obs[0] for env, begun in zip(self.envs, self._begun, strict=True)]
        self._first = stack(first)
        return stack(obs)

    def begun(self) -> np.ndarray:
        return self._begun

    def first(self) -> Arrays:
        return self._first

    def close(self) -> None:
        self.closed = True
        for env in self.envs:
            env.close()


def stack(rows: list[dict[str, Any]]) -> Arrays:
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
