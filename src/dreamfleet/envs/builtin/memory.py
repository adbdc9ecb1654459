"""A cue, a delay, a choice: the smallest task that needs to remember."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.spaces import Space


class Memory:
    """The first observation shows one of `cues` at random, the next `delay` ones show none, then `go` is 1.

    The action taken there ends the episode, with a reward of 1 if it is the cue's number and of 0 if not. Actions
    before that change nothing, so a policy without memory is right once in `cues` episodes.
    """

    def __init__(self, seed: int = 0, *, cues: int = 2, delay: int = 5) -> None:
        if cues < 2 or delay < 0:
            raise ValueError(f"{cues} cues and a delay of {delay} steps make no task")
        self.optimum = 1.0
        self.chance = 1 / cues
        self._rng = np.random.default_rng(seed)
        self._cues, self._delay = cues, delay
        self._cue = 0
        self._step = 0
        self._done = True
        self.obs_space = {
            "cue": Space(np.float32, (cues,), 0.0, 1.0),
            "go": Space(np.float32, (1,), 0.0, 1.0),
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        self.act_space = {"action": Space(np.int32, (), 0, cues), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["reset"] or self._done:
            self._cue = int(self._rng.integers(self._cues))
            self._step = 0
            self._done = False
            return self._observe(0.0)
        self._step += 1
        self._done = self._step == self._delay + 2  # after the cue, the delay and the choice
        return self._observe(float(self._done and action["action"] == self._cue))

    def close(self) -> None:
        pass

    def _observe(self, reward: float) -> dict[str, Any]:
        cue = np.zeros(self._cues, np.float32)
        if self._step == 0:
            cue[self._cue] = 1.0
        return {
            "cue": cue,
            "go": np.full(1, self._step == self._delay + 1, np.float32),
            "reward": np.float32(reward),
            "is_first": np.bool_(self._step == 0),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(self._done),
        }
