"""An environment, agents and replays that take their time; named on the command line as `support.slow_parts:NAME`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from dreamfleet.agent.random_agent import RandomAgent
from dreamfleet.config.schema import Config
from dreamfleet.core.interfaces import Arrays
from dreamfleet.launch.replay_options import replay_options
from dreamfleet.replay.store import ReplayStore
from support.user_envs import Tiny

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


class SlowPolicy(RandomAgent):
    def __init__(self, obs_space: Any, act_space: Any, seed: int) -> None:
        super().__init__(act_space, seed)

    def policy(self, carry: Any, obs: Any, mode: str) -> Any:
        threading.Event().wait(STEP_S)
        return super().policy(carry, obs, mode)


class SlowTrain(RandomAgent):
    def __init__(self, obs_space: Any, act_space: Any, seed: int) -> None:
        super().__init__(act_space, seed)

    def train(self, carry: Any, batch: Any) -> Any:
        threading.Event().wait(STEP_S)
        return super().train(carry, batch)


class SlowSample(ReplayStore):
    def sample(self, n: int, mode: str) -> Arrays:
        threading.Event().wait(STEP_S)
        return super().sample(n, mode)


class SlowInsert(ReplayStore):
    def add_batch(self, data: Arrays) -> None:
        threading.Event().wait(STEP_S)
        super().add_batch(data)


def make_slow_replay(kind: type[ReplayStore], config: Config, folder: Path) -> ReplayStore:
    return kind(replay_options(config, folder, "train"))
