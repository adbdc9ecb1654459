"""The learner role: trains the agent on batches from replay, reports, logs and saves."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.clock import Decisions, GlobalClock
from dreamfleet.core.context import RoleContext
from dreamfleet.core.errors import DeadlineExceeded, Disconnected, ReplayError, TransportError
from dreamfleet.core.events import Event
from dreamfleet.core.interfaces import Agent, Arrays
from dreamfleet.core.waits import Wait
from dreamfleet.roles.connect import until_stopped
from dreamfleet.roles.learner_clients import LearnerClients, RemoteStream, expect_connected
from dreamfleet.roles.learner_metrics import LearnerMetrics
from dreamfleet.roles.learner_reports import LearnerReports
from dreamfleet.roles.snapshot_coordinator import SnapshotCoordinator


class LearnerRole:
    """`step` is one pass of the loop: a batch, an update, and whatever the clocks call for."""

    def __init__(
        self,
        agent: Agent,
        args: FleetArgs,
        clients: LearnerClients,
        context: RoleContext,
        board: Decisions | None = None,
    ) -> None:
        self.agent = agent
        self.args = args
        self.clients = clients
        self.context = context
        self.updates = 0
        self.metrics = LearnerMetrics(agent, clients.logger, context)
        waits, timer = self.metrics.waits, self.metrics.timer
        source = RemoteStream(clients.sampler, "sample_batch_train", waits, args.batches_ahead)
        self._batches = agent.stream(source)
        self._carry = agent.init_train(args.batch_size)
        self._newest: Mapping[str, Any] = {}  # metrics of training
        self.reports = LearnerReports(agent, args, clients, self.metrics)
        self.snapshots = SnapshotCoordinator(agent, args, clients, context, waits, timer)
        self._should_report = self._clock(args.report_every, "report", board)
        self._should_log = self._clock(args.log_every, "log", board)
        self._should_save = self._clock(args.save_every, "save", board)

    def restore(self) -> None:
        self.updates = self.snapshots.restore()

    def run(self) -> None:
        try:
            with until_stopped(self.context.stop):
                while not self.context.stop.is_set():  # batches asked for ahead come without a wait that would end
                    self.step()
            self._end()
        finally:
            self.snapshots.close()

    def step(self) -> None:
        batch = next(self._batches)
        outs = self._train(batch)
        if "replay" in outs:
            self._update_replay(outs["replay"])
        if self._should_report():
            with contextlib.suppress(Disconnected, ReplayError):  # it died, or came back empty: the next one will do
                self.report()
        if self._should_log():
            self.log()
        if self._should_save():
            self.snapshots.request()
        self.snapshots.poll(self.updates)

    def report(self) -> None:
        self.reports.run()

    def log(self) -> None:
        self.metrics.log(self._newest)

    def save(self) -> None:
        """One snapshot over agent, replay and logger, whether or not one is due."""
        self.snapshots.save(self.updates)

    def status(self) -> Mapping[str, Any]:
        return {"updates": self.updates, **self.metrics.status(), "sampler": self.clients.sampler.stats()}

    def _train(self, batch: Arrays) -> Mapping[str, Any]:
        with self.metrics.timer.section("train"):
            self._carry, outs, self._newest = self.agent.train(self._carry, batch)
        self.updates += 1
        self.metrics.count_update(self.args.batch_size * self.args.batch_length)
        return outs

    def _update_replay(self, latents: Arrays) -> None:
        """Latents on their way to a replay that died are lost with the steps that they belong to."""
        with self.metrics.waits(Wait.REPLAY_TO_ACCEPT_LATENTS), contextlib.suppress(Disconnected):
            self.clients.updater.call("update", latents)

    def _end(self) -> None:
        """The last rows and the last snapshot, unless the run ends because another role is gone."""
        try:
            expect_connected((self.clients.replay, self.clients.logger), self.args.save_timeout_s)
            self.log()
            self.snapshots.finish(self.updates)
        except (TransportError, DeadlineExceeded) as error:
            self.context.report.event(Event.SAVE_FAILED, {"reason": str(error)})
            if self.context.by_hand:
                raise  # no supervisor reports the role that is gone

    def _clock(self, every: float, name: str, board: Decisions | None) -> GlobalClock:
        return GlobalClock(every, name, self.args.replica, self.args.replicas, board)
