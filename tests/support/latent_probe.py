"""A Dreamer whose weights stay as they are, and which compares what it recorded while acting with what it trains on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.agent.device.batches import DeviceBatch
from dreamfleet.agent.dreamer import ComputeOptions, DreamerAgent, DreamerShape
from dreamfleet.core.hyperparameters import OptimizerOptions
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.spaces import Space
from support.tiny_dreamer import tiny_options

RESULT = "LATENT_PROBE_RESULT"  # environment variable: the file that findings are appended to
ROWS, STEPS, LATENTS = 2, 8, ("dyn/deter", "dyn/stoch")


class NoTwoAlike:
    """Observations are random numbers, so that each of them tells which step it belongs to.

    Episodes have five observations: windows of nine, one after the other, begin at every one of them.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._step = 0
        flags = {key: Space(bool) for key in ("is_first", "is_last", "is_terminal")}
        self.obs_space = {"position": Space(np.float32, (3,)), "reward": Space(np.float32), **flags}
        self.act_space = {"move": Space(np.int32, (), 0, 5), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        self._step = 0 if action["reset"] or self._step == 4 else self._step + 1
        return {
            "position": self._rng.standard_normal(3).astype(np.float32),
            "reward": np.float32(0),
            "is_first": np.bool_(self._step == 0),
            "is_last": np.bool_(self._step == 4),
            "is_terminal": np.bool_(False),
        }

    def close(self) -> None:
        pass


class LatentProbe(DreamerAgent):
    def __init__(self, obs_space: Mapping[str, Space], act_space: Mapping[str, Space], seed: int) -> None:
        frozen = OptimizerOptions(lr=1e-30)
        options = replace(tiny_options(), opt=frozen)
        shape = DreamerShape(ROWS, STEPS, 0, 1, (1, 2, 4), 8)
        super().__init__(obs_space, act_space, options, shape, ComputeOptions("float32"), seed)
        self._acted_with: dict[bytes, dict[str, np.ndarray]] = {}
        self._trained_on: dict[str, np.ndarray] | None = None

    def policy(self, carry: Any, obs: Arrays, mode: str) -> Any:
        carry, actions, latents = super().policy(carry, obs, mode)
        found = {key: np.asarray(latents[key], np.float32) for key in LATENTS}
        for row, position in enumerate(obs["position"]):
            self._acted_with[position.tobytes()] = {key: value[row] for key, value in found.items()}
        return carry, actions, latents

    def train(self, carry: Any, batch: DeviceBatch) -> Any:
        seen = {key: batch.arrays()[key] for key in ("position", "is_first", "consec", *LATENTS)}
        carry, outs, metrics = super().train(carry, batch)
        if self._trained_on is not None:  # what comes back is of the update before
            self._compare(self._trained_on, np.asarray(outs["replay"]["dyn/deter"], np.float32)[:, 0])
        self._trained_on = seen
        return carry, outs, metrics

    def _compare(self, seen: Mapping[str, np.ndarray], deter: np.ndarray) -> None:
        for row in range(ROWS):
            before, now = (self._acted_with[seen["position"][row, step].tobytes()] for step in (0, 1))
            stored = {key: np.asarray(seen[key][row, 0], np.float32) for key in LATENTS}
            if seen["consec"][row] or any((stored[key] != before[key]).any() for key in LATENTS):
                continue  # latents that an update wrote since then
            finding = {
                "first": bool(seen["is_first"][row, 1]),
                "error": float(np.abs(deter[row] - now["dyn/deter"]).max()),
                "step": float(np.abs(deter[row] - before["dyn/deter"]).max()),
            }
            with Path(os.environ[RESULT]).open("a") as file:
                file.write(json.dumps(finding) + "\n")
