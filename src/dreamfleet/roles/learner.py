"""The learner role: trains the agent on batches from replay, reports, logs and saves."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays, save_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.clock import Decisions, GlobalClock
from dreamfleet.core.context import RoleContext
from dreamfleet.core.counters import Counters
from dreamfleet.core.errors import CheckpointError, DeadlineExceeded, Disconnected, ReplayError, TransportError
from dreamfleet.core.interfaces import Agent, Arrays
from dreamfleet.core.timer import Timer
from dreamfleet.core.waits import Waits
from dreamfleet.metrics.usage import GpuUsage, ProcessUsage
from dreamfleet.roles.wiring import Messages, until_stopped
from dreamfleet.transport.client import Client, Future
from dreamfleet.transport.codec import pack_json

PREFETCH = 3  # train batches asked for ahead: two of them arrive while one is trained on
GONE_AFTER_S = 2.0  # without a connection for this long at the end, the other role is taken to be gone


@dataclass(frozen=True)
class LearnerClients:
    """`sampler` and `updater` end their waits when the role stops; the other two still serve the last log and save."""

    sampler: Client
    updater: Client
    replay: Client
    logger: Client

    def close(self) -> None:
        for client in (self.sampler, self.updater, self.replay, self.logger):
            client.close()


class RemoteStream:
    """Batches of one kind from the replay role, with up to `depth` requests in flight. Asks a restarted replay anew."""

    def __init__(self, client: Client, method: str, waits: Waits, depth: int = 1) -> None:
        self._client = client
        self._method = method
        self._waits = waits
        self._depth = depth
        self._pending: deque[Future] = deque()

    def __iter__(self) -> Iterator[Arrays]:
        return self

    def __next__(self) -> Arrays:
        while True:
            try:
                while len(self._pending) < self._depth:
                    self._pending.append(self._client.call(self._method, {}))
                with self._waits("replay to sample"):
                    return self._pending.popleft().result()
            except Disconnected:
                self._pending.clear()


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
        self.waits = Waits()
        self.timer = Timer()
        self._usage = ProcessUsage()
        self._gpus = GpuUsage()
        self._messages = Messages(clients.logger, context)
        self._snapshots = Snapshots(Path(args.logdir))
        self._shown = Counters()  # for the status, read every second
        self._logged = Counters()  # for the metrics, read every log_every seconds
        self._should_log = self._clock(args.log_every, "log", board)
        self._should_report = self._clock(args.report_every, "report", board)
        self._should_save = self._clock(args.save_every, "save", board)
        streams = {
            "train": RemoteStream(clients.sampler, "sample_batch_train", self.waits, PREFETCH),
            "report": RemoteStream(clients.sampler, "sample_batch_report", self.waits),
            "eval": RemoteStream(clients.sampler, "sample_batch_eval", self.waits),
        }
        self._streams = {name: agent.stream(stream) for name, stream in streams.items()}
        self._carry = agent.init_train(args.batch_size)
        self._metrics: Mapping[str, Any] = {}
        self._saved = (-1, -1)  # step and updates

    def restore(self) -> None:
        folder = self._snapshots.latest()
        if folder is not None:
            if (folder / "agent.safetensors").exists():  # not in one that holds imported steps only
                self.agent.load(load_arrays(folder / "agent.safetensors"))
            manifest = self._snapshots.manifest()
            self.updates = int(manifest["updates"])
            self._saved = (int(manifest["step"]), self.updates)
            self.context.report.event("restore", {"snapshot": folder.name, "updates": self.updates})

    def run(self) -> None:
        with until_stopped(self.context.stop):
            while not self.context.stop.is_set():  # batches asked for ahead come without a wait that would end
                self.step()
        try:
            for client in (self.clients.replay, self.clients.logger):
                client.timeout_s = self.args.save_timeout_s
                client.take_in()
                client.wait_connected(GONE_AFTER_S)
            self.log()
            self.save()
        except (TransportError, DeadlineExceeded) as error:  # a fleet that ends because another role failed cannot save
            self.context.report.event("save_failed", {"reason": str(error)})

    def step(self) -> None:
        batch = next(self._streams["train"])
        with self.timer.section("train"):
            self._carry, outs, self._metrics = self.agent.train(self._carry, batch)
        self.updates += 1
        for counters in (self._shown, self._logged):
            counters.add("updates", 1)
            counters.add("train", self.args.batch_size * self.args.batch_length)
        if "replay" in outs:
            # Latents on their way to a replay that died are lost with the steps that they belong to.
            with self.waits("replay to accept latents"), contextlib.suppress(Disconnected):
                self.clients.updater.call("update", outs["replay"])
        if self._should_report():
            with contextlib.suppress(Disconnected):  # the next report will do
                self.report()
        if self._should_log():
            self.log()
        if self._should_save():
            self._try_save()

    def report(self) -> None:
        with self.timer.section("report"):
            self._report("report")
            if self.clients.replay.call("sizes", {}).result()["eval"] > 0:
                self._report("eval")

    def log(self) -> None:
        rates = {f"fps/{name}": rate for name, rate in self._logged.rates().items()}
        waits = {f"wait/learner/{name.replace(' ', '_')}_s": seconds for name, seconds in self.waits.totals().items()}
        timers = {f"timer/learner/{name}": value for name, value in self.timer.stats().items()}
        usage = {**self._usage.metrics("agent"), **self._gpus.metrics()}
        self._send_metrics({**rates, **waits, **timers, **usage})
        self._send_metrics(self._metrics, "train")

    def save(self) -> None:
        """One snapshot over agent, replay and logger: each writes its part, and the folder is renamed last.

        Steps arrive meanwhile: the snapshot is that of the steps replay has saved, whatever its folder's name says.
        """
        named = int(self.clients.replay.call("sizes", {}).result()["inserts"])
        if (named, self.updates) == self._saved:
            return
        with self.timer.section("save"):
            folder = self._snapshots.begin(named)
            save_arrays(folder / "agent.safetensors", self.agent.save())
            replay, _ = self._ask_both("save", {"snapshot": named})
            step = int(replay["inserts"])
            self._snapshots.commit(named, {"step": step, "updates": self.updates})
            self._saved = (step, self.updates)
            self.context.report.event("snapshot", {"step": step, "updates": self.updates})
            self._ask_both("committed", {"snapshot": named, "step": step, "updates": self.updates})

    def _try_save(self) -> None:
        """A disk that is full now may have room later: training goes on, and only the last save of a run must work."""
        try:
            self.save()
        except (CheckpointError, ReplayError, Disconnected) as error:
            self.context.report.event("save_failed", {"reason": str(error)})
            sys.stderr.write(f"no snapshot was taken: {error}\n")

    def status(self) -> Mapping[str, Any]:
        return {
            "updates": self.updates,
            "rates": {name: round(rate, 1) for name, rate in self._shown.rates().items()},
            "waiting": self.waits.current(),
            "wait_s": self.waits.totals(),
            "sampler": self.clients.sampler.stats(),
        }

    def _ask_both(self, method: str, numbers: Mapping[str, int]) -> list[Arrays]:
        """What replay and logger answer; they work on it at the same time."""
        data = {key: np.array(value, np.int64) for key, value in numbers.items()}
        answers = [client.call(method, data) for client in (self.clients.replay, self.clients.logger)]
        return [answer.result() for answer in answers]

    def _report(self, kind: str) -> None:
        carry = self.agent.init_report(self.args.batch_size)
        for number in range(self.args.report_batches):
            carry, metrics = self.agent.report(carry, next(self._streams[kind]))
            self._send_metrics(metrics, kind)
            if number == 0:
                self._send_videos(metrics, kind)

    def _send_metrics(self, metrics: Mapping[str, Any], prefix: str | None = None) -> None:
        scalars = {key: float(value) for key, value in metrics.items() if np.ndim(value) == 0}
        if scalars:
            self._messages.call("add", {"json": pack_json({"prefix": prefix, "metrics": scalars})})

    def _send_videos(self, metrics: Mapping[str, Any], prefix: str) -> None:
        """Frames are [time, height, width, channels]."""
        videos = {f"{prefix}/{key}": np.asarray(value) for key, value in metrics.items() if np.ndim(value) == 4}
        if videos:
            self._messages.call("video", videos)

    def _clock(self, every: float, name: str, board: Decisions | None) -> GlobalClock:
        return GlobalClock(every, name, self.args.replica, self.args.replicas, board)
