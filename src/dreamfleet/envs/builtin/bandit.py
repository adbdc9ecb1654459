"""One decision per episode: the smallest task that needs to prefer an action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.spaces import Space


class Bandit:
    """Pulling arm `i` of `k` ends the episode with a reward of 1, with probability `means[i] = (i + 0.5) / k`, or of 0.

    With contexts, `context` shows one of `k` at random, and arm `a` pays as arm `(a - context - 1) % k` does without:
    the best arm is the one that has the context's number. Without, `context` is constant.
    """

    def __init__(self, seed: int = 0, *, contextual: bool = False, arms: int = 5) -> None:
        if arms < 2:
            raise ValueError(f"a bandit with {arms} arms leaves no choice")
        self.means = (np.arange(arms) + 0.5) / arms
        self.optimum = float(self.means.max())
        self.chance = float(self.means.mean())
        self._rng = np.random.default_rng(seed)
        self._contextual = contextual
        self._arms = arms
        self._context = arms - 1
        self._done = True
        self.obs_space = {
            "context": Space(np.float32, (arms,), 0.0, 1.0),
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        self.act_space = {"action": Space(np.int32, (), 0, arms), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["reset"] or self._done:
            self._done = False
            if self._contextual:
                self._context = int(self._rng.integers(self._arms))
            return self._observe(0.0)
        self._done = True
        mean = self.means[(int(action["action"]) - self._context - 1) % self._arms]
        return self._observe(float(self._rng.random() < mean))

    def close(self) -> None:
        pass

    def _observe(self, reward: float) -> dict[str, Any]:
        context = np.zeros(self._arms, np.float32)
        context[self._context] = 1.0
        return {
            "context": context,
            "reward": np.float32(reward),
            "is_first": np.bool_(not self._done),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(self._done),
        }
