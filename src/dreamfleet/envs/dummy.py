"""The built-in test environment: cheap, deterministic, with an image and a vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.spaces import Space

ACTIONS = 5
IMAGES = 16


class Dummy:
    """Episodes of `length` steps. The rewarded action is shown in `vector` and changes every step.

    A policy that always takes it earns `length`, a random one a fifth of that.
    """

    def __init__(self, seed: int = 0, length: int = 100, size: int = 64) -> None:
        rng = np.random.default_rng(seed)
        self._length = length
        self._images = rng.integers(0, 256, (IMAGES, size, size, 3), np.uint8)
        self._targets = np.eye(ACTIONS, dtype=np.float32)
        self._step = 0
        self._done = True
        self.obs_space = {
            "image": Space(np.uint8, (size, size, 3)),
            "vector": Space(np.float32, (ACTIONS,)),
            "count": Space(np.int32, (), 0, length + 1),
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        self.act_space = {"action": Space(np.int32, (), 0, ACTIONS), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["reset"] or self._done:
            self._step = 0
            self._done = False
            return self._observe(0.0)
        rewarded = self._step % ACTIONS
        self._step += 1
        self._done = self._step >= self._length
        return self._observe(float(action["action"] == rewarded))

    def close(self) -> None:
        pass

    def _observe(self, reward: float) -> dict[str, Any]:
        return {
            "image": self._images[self._step % IMAGES],
            "vector": self._targets[self._step % ACTIONS],
            "count": np.int32(self._step),
            "reward": np.float32(reward),
            "is_first": np.bool_(self._step == 0),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(False),
        }
