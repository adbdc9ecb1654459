"""An agent as it is driven in lock step: nothing is fetched ahead, nothing held back, and its carries can be saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np

from dreamfleet.core.interfaces import (
    Agent,
    Arrays,
    Carries,
    Carry,
    DelaysReplayUpdates,
    HasDeviceCarries,
    ResetsOptimizer,
    UpgradesArrays,
)
from dreamfleet.roles.slots import CarryTable


class LockstepAgent:
    """Passes every call on to the agent.

    Between two rounds there is then no batch, no latent and no carry that a snapshot would miss.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.carries: Carries = (
            agent.carry_table() if isinstance(agent, HasDeviceCarries) else CarryTable(agent.init_policy)
        )

    def carry_table(self) -> Carries:
        return self.carries

    def init_policy(self, n: int) -> Carry:
        return self._agent.init_policy(n)

    def policy(self, carry: Carry, obs: Arrays, mode: str) -> tuple[Carry, Arrays, Arrays]:
        return self._agent.policy(carry, obs, mode)

    def init_train(self, n: int) -> Carry:
        return self._agent.init_train(n)

    def train(self, carry: Carry, batch: Arrays) -> tuple[Carry, dict[str, Any], Mapping[str, Any]]:
        """With what this update has for replay, of an agent that holds it back."""
        carry, outs, metrics = self._agent.train(carry, batch)
        if isinstance(self._agent, DelaysReplayUpdates) and (held_back := self._agent.take_held_back()):
            outs["replay"] = held_back
        return carry, outs, metrics

    def init_report(self, n: int) -> Carry:
        return self._agent.init_report(n)

    def report(self, carry: Carry, batch: Arrays) -> tuple[Carry, Mapping[str, Any]]:
        return self._agent.report(carry, batch)

    def stream(self, source: Iterator[Arrays]) -> Iterator[Arrays]:
        """Every batch is a stream of its own for the agent, which then has none to look ahead at."""
        for batch in source:
            yield from self._agent.stream(iter([batch]))

    def save(self) -> Arrays:
        return self._agent.save()

    def load(self, data: Mapping[str, np.ndarray], regex: str | None = None) -> None:
        self._agent.load(data, regex)

    def optimizer_to_reset(self, taken: Set[str]) -> set[str]:
        return self._agent.optimizer_to_reset(taken) if isinstance(self._agent, ResetsOptimizer) else set()

    def upgrade_arrays(self, data: Mapping[str, np.ndarray]) -> Arrays:
        return self._agent.upgrade_arrays(data) if isinstance(self._agent, UpgradesArrays) else dict(data)
