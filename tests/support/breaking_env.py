"""An environment that crashes regularly, and an agent that looks for traces of it in the batches it is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.agent.random_agent import RandomAgent
from dreamfleet.core.spaces import Space

LENGTH = 7  # of an episode, so that crashes come in the middle of one


class BreaksEvery:
    """`count` goes on from step to step and over episodes; each life starts at a number of its own."""

    def __init__(self, steps: int, seed: int = 0) -> None:
        self._life = seed % (1 << 20)
        self._steps_left = steps
        self._count = 0
        self._episode_step = -1
        flags = {key: Space(bool) for key in ("is_first", "is_last", "is_terminal")}
        numbers = {"count": Space(np.int32), "life": Space(np.int32)}
        self.obs_space = {**numbers, "reward": Space(np.float32), **flags}
        self.act_space = {"action": Space(np.int32, (), 0, 3), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        self._steps_left -= 1
        if self._steps_left == 0:
            raise RuntimeError("the simulator crashed")
        begins = action["reset"] or self._episode_step in (-1, LENGTH)
        self._episode_step = 0 if begins else self._episode_step + 1
        self._count += 1
        return {
            "count": np.int32(self._count),
            "life": np.int32(self._life),
            "reward": np.float32(0 if begins else 1),
            "is_first": np.bool_(begins),
            "is_last": np.bool_(self._episode_step == LENGTH),
            "is_terminal": np.bool_(False),
        }

    def close(self) -> None:
        pass


class RecordingAgent(RandomAgent):
    """Counts, over all windows it is trained on, where the count of steps does not go on by one."""

    def __init__(self, obs_space: Any, act_space: Any, seed: int) -> None:
        super().__init__(act_space, seed)
        self._lives: set[int] = set()
        self._counts = dict.fromkeys(("windows", "jumps", "jumps_without_first", "episodes", "first_without_end"), 0)

    def train(self, carry: Any, batch: Any) -> Any:
        same_life = batch["life"][:, 1:] == batch["life"][:, :-1]
        goes_on = same_life & (batch["count"][:, 1:] == batch["count"][:, :-1] + 1)
        first, last = batch["is_first"][:, 1:], batch["is_last"][:, :-1]
        self._lives.update(batch["life"].ravel().tolist())
        found = {
            "windows": len(batch["count"]),
            "jumps": (~goes_on).sum(),
            "jumps_without_first": (~goes_on & ~first).sum(),
            "episodes": (first & goes_on).sum(),
            "first_without_end": (first & goes_on & ~last).sum(),
        }
        for key, number in found.items():
            self._counts[key] += int(number)
        return super().train(carry, batch)

    def save(self) -> Any:
        counts = {key: np.array(number, np.int64) for key, number in self._counts.items()}
        return {**super().save(), **counts, "lives": np.array(len(self._lives), np.int64)}
