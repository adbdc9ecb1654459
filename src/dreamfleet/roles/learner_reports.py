"""Reports: the agent's metrics and videos on batches that it does not learn from."""

from __future__ import annotations

from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Agent, Arrays
from dreamfleet.core.waits import Wait
from dreamfleet.roles.learner_clients import LearnerClients, RemoteStream
from dreamfleet.roles.learner_metrics import LearnerMetrics


class LearnerReports:
    """Reports on the training replay ("report") and, where it holds steps, on the evaluation replay ("eval").

    Each has batches and a carry of its own. The carry is kept for the next report, which may begin in the middle of a
    window.
    """

    def __init__(self, agent: Agent, args: FleetArgs, clients: LearnerClients, metrics: LearnerMetrics) -> None:
        self._agent = agent
        self._args = args
        self._replay = clients.replay
        self._metrics = metrics
        self._sources = {
            kind: RemoteStream(clients.sampler, f"sample_batch_{kind}", metrics.waits) for kind in ("report", "eval")
        }
        self._streams = {kind: agent.stream(source) for kind, source in self._sources.items()}
        self._carries: dict[str, Any] = {}

    def run(self) -> None:
        with self._metrics.timer.section("report"):
            self._report_on("report")
            with self._metrics.waits(Wait.REPLAY_TO_SAMPLE):
                evaluates = self._replay.call("sizes", {}).result()["eval"] > 0
            if evaluates:
                self._report_on("eval")

    def _report_on(self, kind: str) -> None:
        if kind not in self._carries:
            self._carries[kind] = self._agent.init_report(self._args.batch_size)
        for number in range(self._args.report_batches):
            batch = self._next_batch(kind)
            self._carries[kind], metrics = self._agent.report(self._carries[kind], batch)
            self._metrics.send(metrics, kind)
            if number == 0:
                self._metrics.send_videos(metrics, kind)

    def _next_batch(self, kind: str) -> Arrays:
        try:
            return next(self._streams[kind])
        except ReplayError:  # it holds no window, and closes the agent's stream if that is a generator
            self._streams[kind] = self._agent.stream(self._sources[kind])
            raise
