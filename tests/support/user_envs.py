"""Environments and agents as users write them, well or badly; named on the command line as `support.user_envs:NAME`."""

from __future__ import annotations

from typing import Any

import numpy as np

from dreamfleet.agent.random_agent import RandomAgent
from dreamfleet.core.context import current_context
from dreamfleet.envs.builtin.dummy import Dummy


def raising() -> Any:
    raise ValueError("the simulator is not installed")


class WrongShape(Dummy):
    def step(self, action: Any) -> dict[str, Any]:
        return {**super().step(action), "vector": np.zeros(3, np.float32)}


class Tiny(Dummy):
    """Small observations, so that many processes start and step quickly."""

    def __init__(self, length: int = 20) -> None:
        super().__init__(length=length, size=4)


class RaisesLater(Tiny):
    def __init__(self, after: int = 50) -> None:
        super().__init__()
        self._steps_left = after

    def step(self, action: Any) -> dict[str, Any]:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise RuntimeError("the robot fell over")
        return super().step(action)


class NeverTrains(RandomAgent):
    """Gets one batch and keeps it, so that replay fills up and everything else has to wait."""

    def __init__(self, obs_space: Any, act_space: Any, seed: int) -> None:
        super().__init__(act_space, seed)

    def train(self, carry: Any, batch: Any) -> Any:
        current_context().stop.wait()
        return super().train(carry, batch)


class PolicyFails(RandomAgent):
    def __init__(self, obs_space: Any, act_space: Any, seed: int) -> None:
        super().__init__(act_space, seed)
        self._calls_left = 50

    def policy(self, carry: Any, obs: Any, mode: str) -> Any:
        self._calls_left -= 1
        if self._calls_left < 0:
            return obs["velocity"]
        return super().policy(carry, obs, mode)


class ReportsModules(Tiny):
    """Fails on purpose with the list of what the worker's process has loaded."""

    def step(self, action: Any) -> dict[str, Any]:
        import sys

        loaded = sorted({name.partition(".")[0] for name in sys.modules} & {"jax", "jaxlib", "equinox", "optax"})
        raise RuntimeError(f"device libraries in the worker: {loaded}")


class Choosy(RandomAgent):
    """Says what it cannot take before it is made."""

    def __init__(self, obs_space: Any, act_space: Any, seed: int = 0) -> None:
        super().__init__(act_space, seed)

    @staticmethod
    def check_spaces(obs_space: Any, act_space: Any) -> None:
        if obs_space["vector"].shape != (5,):
            raise ValueError(f"'vector' has {obs_space['vector'].shape[0]} elements, I take 5: choose another task")
