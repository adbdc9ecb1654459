"""What the learner measures of itself and sends to the logger, with what the agent gives out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.context import RoleContext
from dreamfleet.core.counters import Counters
from dreamfleet.core.interfaces import Agent, HasDeviceTimes
from dreamfleet.core.text.words import waited_status, waits_status
from dreamfleet.core.timer import Timer
from dreamfleet.core.waits import Waits
from dreamfleet.metrics.names import device_metric
from dreamfleet.metrics.usage import GpuUsage, ProcessUsage
from dreamfleet.roles.connect import Messages
from dreamfleet.transport.client import Client
from dreamfleet.transport.codec import pack_json


class LearnerMetrics:
    """Rates, waits and timers of the learner. `send` and `send_videos` pass on metrics of the agent."""

    def __init__(self, agent: Agent, logger: Client, context: RoleContext) -> None:
        self.waits = Waits()
        self.timer = Timer()
        self._agent = agent
        self._messages = Messages(logger, context)
        self._usage = ProcessUsage()
        self._gpus = GpuUsage()
        self._shown = Counters()  # for the status, read every second
        self._logged = Counters()  # for the metrics, read every log_every seconds

    def count_update(self, steps: int) -> None:
        for counters in (self._shown, self._logged):
            counters.add("updates", 1)
            counters.add("train", steps)

    def log(self, newest: Mapping[str, Any]) -> None:
        """Send what was measured since the last call, then the `newest` metrics of training."""
        rates = {f"fps/{name}": rate for name, rate in self._logged.rates().items()}
        waits = self.waits.metrics("learner")
        timers = {f"timer/learner/{name}": value for name, value in self.timer.stats().items()}
        device = {device_metric(name): seconds for name, seconds in self._device_seconds().items()}
        usage = {**self._usage.metrics("agent"), **self._gpus.metrics()}
        self.send({**rates, **waits, **timers, **device, **usage})
        self.send(newest, "train")

    def send(self, metrics: Mapping[str, Any], prefix: str | None = None) -> None:
        scalars = {key: float(value) for key, value in metrics.items() if np.ndim(value) == 0}
        if scalars:
            self._messages.call("add", {"json": pack_json({"prefix": prefix, "metrics": scalars})})

    def send_videos(self, metrics: Mapping[str, Any], prefix: str) -> None:
        """Frames are [time, height, width, channels]."""
        videos = {f"{prefix}/{key}": np.asarray(value) for key, value in metrics.items() if np.ndim(value) == 4}
        if videos:
            self._messages.call("video", videos)

    def status(self) -> dict[str, Any]:
        return {
            "rates": {name: round(rate, 1) for name, rate in self._shown.rates().items()},
            **waits_status(self.waits.current()),
            **waited_status(self.waits.totals()),
            "device_s": self._device_seconds(),
        }

    def _device_seconds(self) -> Mapping[str, float]:
        return self._agent.device_seconds() if isinstance(self._agent, HasDeviceTimes) else {}
