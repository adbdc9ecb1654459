"""An environment and an agent that take their time; named on the command line as `slow_parts:NAME`."""

from __future__ import annotations

import threading
from typing import Any

from dreamfleet.agent.random_agent import RandomAgent
from user_envs import Tiny

STEP_S = 0.02
SAVE_S = 4.0


class SlowEnv(Tiny):
    def step(self, action: Any) -> dict[str, Any]:
        threading.Event().wait(STEP_S)
        return super().step(action)


class SlowSave(RandomAgent):
    """Saves for longer than the third of `run.stop_timeout_s` that the agent has after a failure."""

    def __init__(self, obs_space: Any, act_space: Any, seed: int) -> None:
        super().__init__(act_space, seed)

    def save(self) -> Any:
        threading.Event().wait(SAVE_S)
        return super().save()
