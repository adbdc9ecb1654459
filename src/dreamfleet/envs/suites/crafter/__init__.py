"""Crafter, a survival game in two dimensions. `reward` is the game's own, `noreward` is for exploring without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.spaces import LOG_PREFIX, Space
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions

TASKS = ("reward", "noreward")


class Crafter:
    """Dying is a termination, the end of the day count (`length` steps) a truncation.

    With `logs`, each step tells what was achieved in it under `log/achievement/NAME` (so that an episode's sum is how
    often) and what the player carries under `log/inventory/NAME`.
    """

    def __init__(self, seed: int, *, rewarded: bool, size: tuple[int, int], logs: bool, length: int) -> None:
        import crafter

        from dreamfleet.envs.suites.crafter.game import Game

        height, width = size
        self._env = Game(size=(width, height), reward=rewarded, length=length, seed=seed)
        self._logs = logs
        self._achieved: Mapping[str, int] = {}
        self._done = True
        self.obs_space = {
            "image": Space(np.uint8, (height, width, 3)),
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        if logs:
            achievements, items = crafter.constants.achievements, crafter.constants.items
            names = [f"achievement/{name}" for name in achievements] + [f"inventory/{name}" for name in items]
            self.obs_space |= {f"log/{name}": Space(np.float32) for name in names}
        self.act_space = {"action": Space(np.int32, (), 0, self._env.action_space.n), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["reset"] or self._done:
            image = self._env.reset()
            self._achieved = {}
            self._done = False
            return {**self._observe(image, 0.0, first=True), **self._logged({})}
        image, reward, self._done, info = self._env.step(int(action["action"]))
        dead = info["discount"] == 0
        return {**self._observe(image, reward, terminal=self._done and dead), **self._logged(info)}

    def close(self) -> None:
        pass

    def _observe(self, image: np.ndarray, reward: float, first: bool = False, terminal: bool = False) -> dict[str, Any]:
        return {
            "image": np.ascontiguousarray(image),  # a transposed view is slow to send
            "reward": np.float32(reward),
            "is_first": np.bool_(first),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(terminal),
        }

    def _logged(self, info: Mapping[str, Any]) -> dict[str, np.float32]:
        if not self._logs:
            return {}
        values = {key: np.float32(0) for key in self.obs_space if key.startswith(LOG_PREFIX)}
        achieved = info.get("achievements", {})
        for name, count in achieved.items():
            values[f"log/achievement/{name}"] = np.float32(count - self._achieved.get(name, 0))
        for name, amount in info.get("inventory", {}).items():
            values[f"log/inventory/{name}"] = np.float32(amount)
        self._achieved = dict(achieved)
        return values


def make(task: str, options: EnvOptions, seed: int, logs: bool = False, length: int = 10_000) -> Crafter:
    if task not in TASKS:
        raise unknown_task("crafter", task, TASKS)
    return Crafter(seed, rewarded=task == "reward", size=options.size or (64, 64), logs=logs, length=length)


def tasks() -> list[str]:
    return list(TASKS)
