"""An environment whose every step is told from all others, and an agent that asserts that none is lost inside of a
window, mixed up, or in replay twice, whatever happens to the roles around it; on the command line as
`support.surviving:NAME`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.agent.random_agent import RandomAgent
from dreamfleet.core.spaces import Space

LENGTH = 11  # of an episode


class Living:
    """`count` goes on over episodes; `life` is another one whenever the environment is made. A step takes `step_s`."""

    def __init__(self, step_s: float = 0.01) -> None:
        self._life = int.from_bytes(os.urandom(3), "big")
        self._count = -1
        self._left = 0
        self._pace = threading.Event()
        self._step_s = step_s
        flags = {key: Space(bool) for key in ("is_first", "is_last", "is_terminal")}
        numbers = {"count": Space(np.int32), "life": Space(np.int32)}
        self.obs_space = {**numbers, "reward": Space(np.float32), **flags}
        self.act_space = {"action": Space(np.int32, (), 0, 3), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        self._pace.wait(self._step_s)
        begins = bool(action["reset"]) or self._left == 0
        self._left = LENGTH if begins else self._left - 1
        self._count += 1
        return {
            "count": np.int32(self._count),
            "life": np.int32(self._life),
            "reward": np.float32(not begins),
            "is_first": np.bool_(begins),
            "is_last": np.bool_(self._left == 0),
            "is_terminal": np.bool_(False),
        }

    def close(self) -> None:
        pass


class Checking(RandomAgent):
    """Fails the run by its first broken assertion: such a failure is never followed by a restart."""

    def __init__(self, obs_space: Any, act_space: Any, seed: int) -> None:
        super().__init__(act_space, seed)
        self._stepid: dict[tuple[int, int], tuple[int, int]] = {}  # by life and count

    def train(self, carry: Any, batch: Any) -> Any:
        goes_on = batch["count"][:, 1:] == batch["count"][:, :-1] + 1
        assert (goes_on & (batch["life"][:, 1:] == batch["life"][:, :-1])).all(), "a window crosses a cut"
        assert (np.diff(batch["stepid"], axis=1) == (0, 1)).all()
        assert (batch["is_first"][:, 1:] == batch["is_last"][:, :-1]).all()
        steps = zip(batch["life"].ravel().tolist(), batch["count"].ravel().tolist(), strict=True)
        for step, stepid in zip(steps, batch["stepid"].reshape(-1, 2).tolist(), strict=True):
            assert self._stepid.setdefault(step, tuple(stepid)) == tuple(stepid), "a step is in replay twice"
        return super().train(carry, batch)


class Hangs(RandomAgent):
    """Trains for a while and then never comes back from it."""

    def __init__(self, obs_space: Any, act_space: Any, seed: int) -> None:
        super().__init__(act_space, seed)
        self._left = 10

    def train(self, carry: Any, batch: Any) -> Any:
        self._left -= 1
        if not self._left:
            threading.Event().wait()
        return super().train(carry, batch)


class Diverges(RandomAgent):
    """Has a weight that is NaN after some updates, unless it continues a run."""

    def __init__(self, obs_space: Any, act_space: Any, seed: int) -> None:
        super().__init__(act_space, seed)
        self._left = 10

    def train(self, carry: Any, batch: Any) -> Any:
        self._left -= 1
        return super().train(carry, batch)

    def save(self) -> dict[str, np.ndarray]:
        weights = np.ones(3, np.float32)
        weights[1] = np.nan if self._left <= 0 else 1
        return {**super().save(), "weights": weights}

    def load(self, data: Mapping[str, np.ndarray], regex: str | None = None) -> None:
        assert np.isfinite(data["weights"]).all()
        super().load(data, regex)
        self._left = 1_000_000_000
