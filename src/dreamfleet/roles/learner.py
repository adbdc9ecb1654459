"""The learner role: trains the agent on batches from replay, reports, logs and saves."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dreamfleet import __version__
from dreamfleet.checkpoint.arrays import find_non_finite, load_arrays, save_arrays
from dreamfleet.checkpoint.background import Background
from dreamfleet.checkpoint.manifest import read_manifest, spaces
from dreamfleet.checkpoint.partial import find_agent, merge
from dreamfleet.checkpoint.requests import SnapshotRequests
from dreamfleet.checkpoint.snapshot import CONFIG_FILE, Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.clock import Decisions, GlobalClock, LocalClock
from dreamfleet.core.context import RoleContext
from dreamfleet.core.counters import Counters
from dreamfleet.core.errors import (
    CheckpointError,
    DeadlineExceeded,
    Disconnected,
    NonFinite,
    ReplayError,
    TransportError,
)
from dreamfleet.core.interfaces import Agent, Arrays, MeasuresDevice, ResetsOptimizer, UpgradesArrays
from dreamfleet.core.open_files import retry_without_files
from dreamfleet.core.timer import Timer
from dreamfleet.core.waits import Waits
from dreamfleet.metrics.usage import GpuUsage, ProcessUsage
from dreamfleet.roles.going_back import send_back
from dreamfleet.roles.wiring import Messages, retention, snapshot_request, until_stopped
from dreamfleet.transport.client import Client, Future
from dreamfleet.transport.codec import pack_json

LOOK_EVERY_S = 1.0  # for somebody who asks for a snapshot
GONE_AFTER_S = 2.0  # without a connection for this long at the end, the other role is taken to be gone
# What may keep one snapshot from being taken, and the next one not.
UNSAVED = (CheckpointError, ReplayError, TransportError, DeadlineExceeded, OSError)


@dataclass(frozen=True)
class LearnerClients:
    """`sampler` and `updater` end their waits when the role stops; the other two still serve the last log and save."""

    sampler: Client
    updater: Client
    replay: Client
    logger: Client
    # Replay and logger for the thread that writes snapshots; without them, training waits for each snapshot.
    saving: tuple[Client, Client] | None = None

    def close(self) -> None:
        for client in (self.sampler, self.updater, self.replay, self.logger):
            client.close()
        for client in self.saving or ():
            with contextlib.suppress(TransportError):  # in use by a thread that still waits for a role that is gone
                client.close()


class RemoteStream:
    """Batches of one kind from the replay role, with up to `depth` requests in flight. Asks a restarted replay again.

    Replay cuts the chunks of a window (key `consec`) in the order of the requests. What was in flight when the
    connection was lost may have been cut, so the chunks up to the next window are skipped: the agent's carry belongs
    to another place.
    """

    def __init__(self, client: Client, method: str, waits: Waits, depth: int = 1) -> None:
        self._client = client
        self._method = method
        self._waits = waits
        self._depth = depth
        self._pending: deque[Future] = deque()

    def __iter__(self) -> Iterator[Arrays]:
        return self

    def __next__(self) -> Arrays:
        with contextlib.suppress(Disconnected):
            self._ask()  # not a part of the wait; where all is one process, it is the sampling
        lost = False
        with self._waits("replay to sample"):  # one wait, however often replay is lost in it
            while True:
                try:
                    self._ask()
                    batch = self._pending.popleft().result()
                except Disconnected:
                    self._pending.clear()
                    lost = True
                    continue
                if not lost or not np.any(batch.get("consec", 0)):
                    return batch

    def _ask(self) -> None:
        while len(self._pending) < self._depth:
            self._pending.append(self._client.call(self._method, {}))


class Capture(NamedTuple):
    """What a snapshot is of, as long as it is not written."""

    named: int  # the folder
    step: int
    lost: int  # steps of the run that a replay which was started again does not have
    updates: int
    score: float | None
    arrays: Arrays
    asked: Arrays  # the request that the other roles got
    parts: set[str]  # that are in the learner's own run folder


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
        self._snapshots = Snapshots(Path(args.logdir), retention(args))
        self._requests = SnapshotRequests(self._snapshots.folder)
        self._saving = Background("the thread that writes snapshots")
        self._shown = Counters()  # for the status, read every second
        self._logged = Counters()  # for the metrics, read every log_every seconds
        self._should_log = self._clock(args.log_every, "log", board)
        self._should_report = self._clock(args.report_every, "report", board)
        self._should_save = self._clock(args.save_every, "save", board)
        self._sources = {
            "train": RemoteStream(clients.sampler, "sample_batch_train", self.waits, args.batches_ahead),
            "report": RemoteStream(clients.sampler, "sample_batch_report", self.waits),
            "eval": RemoteStream(clients.sampler, "sample_batch_eval", self.waits),
        }
        self._streams = {name: agent.stream(source) for name, source in self._sources.items()}
        self._carry = agent.init_train(args.batch_size)
        self._report_carries: dict[str, Any] = {}
        self._metrics: Mapping[str, Any] = {}
        self._should_look = LocalClock(LOOK_EVERY_S)
        self._due = False  # a snapshot is to be taken as soon as the one before it is written
        self._told_disk = False
        self._saved = (-1, -1)  # step and updates

    def restore(self) -> None:
        self._snapshots.claim()
        folder = self._snapshots.latest()
        for snapshot in self._snapshots.damaged():
            self.context.report.event("damaged", {"snapshot": snapshot.folder.name, "reason": str(snapshot.damage)})
        has_agent = folder is not None and (folder / "agent.safetensors").exists()  # not if it is of imported steps
        if not has_agent and self.args.from_checkpoint:
            self._begin_from(find_agent(Path(self.args.from_checkpoint)))
        if folder is not None:
            if has_agent:
                self.agent.load(load_arrays(folder / "agent.safetensors"))
            manifest = read_manifest(folder)
            self.updates = int(manifest["updates"])
            self._saved = (int(manifest["step"]), self.updates)
            counts = {"step": self._saved[0], "updates": self.updates}
            self.context.report.event("restore", {"snapshot": folder.name, **counts})
        with self.waits("replay to start"):
            send_back(self.clients.sampler, folder, self.context)

    def _begin_from(self, source: Path) -> None:
        to_reset = self.agent.optimizer_to_reset if isinstance(self.agent, ResetsOptimizer) else None
        upgrade = self.agent.upgrade_arrays if isinstance(self.agent, UpgradesArrays) else None
        arrays, loaded = merge(self.agent.save(), source, self.args.from_checkpoint_regex, to_reset, upgrade)
        self.agent.load(arrays)
        detail = {"taken": loaded.taken, "skipped": loaded.skipped, "mismatched": loaded.mismatched}
        detail |= {"reset": loaded.reset} if loaded.reset else {}
        self.context.report.event("from_checkpoint", detail)
        self.context.warn(loaded.text(source))

    def run(self) -> None:
        try:
            with until_stopped(self.context.stop):
                while not self.context.stop.is_set():  # batches asked for ahead come without a wait that would end
                    self.step()
            self._end()
        finally:
            # A snapshot under way when training failed may still be written.
            with contextlib.suppress(*UNSAVED, NonFinite):
                self._saving.finish(GONE_AFTER_S)

    def _end(self) -> None:
        """The last rows and the last snapshot, unless the run ends because another role is gone."""
        try:
            self._expect_connected(self.clients.replay, self.clients.logger)
            self.log()
            self._finish_saving()  # until then, its clients belong to the thread that writes
            self._expect_connected(*(self.clients.saving or ()))
            retry_without_files(self._save_last, self.args.save_timeout_s)
        except (TransportError, DeadlineExceeded) as error:
            self.context.report.event("save_failed", {"reason": str(error)})
            if self.context.by_hand:
                raise  # no supervisor reports the role that is gone

    def _save_last(self) -> None:
        self.save()
        self._saving.finish(self.args.save_timeout_s)

    def _expect_connected(self, *clients: Client) -> None:
        for client in clients:
            client.timeout_s = self.args.save_timeout_s
            client.take_in()
            client.wait_connected(GONE_AFTER_S)

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
            with contextlib.suppress(Disconnected, ReplayError):  # it died, or came back empty: the next one will do
                self.report()
        if self._should_log():
            self.log()
        if self._should_save():
            self._due = True
        if not self._saving.busy:
            self._save_if_due()

    def report(self) -> None:
        with self.timer.section("report"):
            self._report("report")
            with self.waits("replay to sample"):
                evaluates = self.clients.replay.call("sizes", {}).result()["eval"] > 0
            if evaluates:
                self._report("eval")

    def log(self) -> None:
        rates = {f"fps/{name}": rate for name, rate in self._logged.rates().items()}
        waits = {f"wait/learner/{name.replace(' ', '_')}_s": seconds for name, seconds in self.waits.totals().items()}
        timers = {f"timer/learner/{name}": value for name, value in self.timer.stats().items()}
        device = {f"device/{name}_s": seconds for name, seconds in self._device_seconds().items()}
        usage = {**self._usage.metrics("agent"), **self._gpus.metrics()}
        self._send_metrics({**rates, **waits, **timers, **device, **usage})
        self._send_metrics(self._metrics, "train")

    def save(self) -> None:
        """One snapshot over agent, replay and logger.

        Replay is captured first and the agent right after it, before the next update: no step in the snapshot is newer
        than its weights. The files are written while training goes on, and the folder is renamed last.
        """
        capture = self._capture()
        if capture is None:
            self._requests.answer(self._snapshots.newest())
        elif self.clients.saving is None:
            self._write(capture, (self.clients.replay, self.clients.logger))
        else:
            saving = self.clients.saving
            self._saving.start(lambda: self._write(capture, saving))

    def _capture(self) -> Capture | None:
        """What training waits for; None if there is nothing new to save."""
        with self.waits("snapshot to be captured"), self.timer.section("save"):
            named = int(self.clients.replay.call("sizes", {}).result()["step"])
            if (named, self.updates) == self._saved:
                return None
            self._snapshots.begin(named)
            asked = snapshot_request(named, self._snapshots.token)
            method = "capture" if self.clients.saving else "save"
            replay = self.clients.replay.call(method, asked).result()
            logger = self.clients.logger.call("save", asked).result()
            # Copies: the next update may change the agent's own arrays in place.
            arrays = {key: np.array(value) for key, value in self.agent.save().items()}
        score = float(logger.get("score", np.nan))
        step = int(replay["step"])
        lost = step - int(replay["inserts"])
        parts = {"agent", *(name for name, part in (("replay", replay), ("logger", logger)) if part.get("here"))}
        return Capture(named, step, lost, self.updates, score if np.isfinite(score) else None, arrays, asked, parts)

    def _write(self, capture: Capture, clients: tuple[Client, Client]) -> None:
        """The rest of a save, on the thread that writes snapshots if there is one."""
        replay, _ = clients
        named, step = capture.named, capture.step
        if name := find_non_finite(capture.arrays.items()):
            raise NonFinite(
                f"the agent's array {name!r} is not finite after update {capture.updates}, so no snapshot is taken: "
                "continue from the one before with a lower agent.opt.lr, or look for damaged observations or rewards"
            )
        folder = self._snapshots.pending(named)
        save_arrays(folder / "agent.safetensors", capture.arrays)
        config = Path(self.args.logdir) / CONFIG_FILE
        if config.exists():
            shutil.copyfile(config, folder / CONFIG_FILE)
        if self.clients.saving:
            replay.call("saved", capture.asked).result()
        about = {
            "version": __version__,
            "config": CONFIG_FILE if config.exists() else None,
            "spaces": spaces(self.agent),
        }
        counts = {"step": step, "updates": capture.updates, "lost": capture.lost, "score": capture.score}
        final = self._snapshots.commit(named, {**counts, **about}, capture.parts)
        self._saved = (step, capture.updates)
        self.context.report.event("snapshot", {"step": step, "updates": capture.updates})
        self._requests.answer(final)
        data = {**capture.asked, "step": np.array(step, np.int64), "updates": np.array(capture.updates, np.int64)}
        for answer in [client.call("committed", data) for client in clients]:
            answer.result()

    def _save_if_due(self) -> None:
        """A disk that is full now may have room later: training goes on, and only the last save of a run must work."""
        self._finish_saving()
        asked = self._should_look() and self._requests.waiting()
        due = self._due and not self._put_off()
        if not due and not asked:
            return
        self._due = False
        try:
            self.save()
        except UNSAVED as error:
            self._tell_failure(error)

    def _put_off(self) -> bool:
        """Whether the disk is too full for snapshots that nobody asked for."""
        low = self.context.disk_low.is_set()
        if low and not self._told_disk:
            self.context.warn("the disk is nearly full: no snapshot until there is room, but for the last one")
        self._told_disk = low
        return low

    def _finish_saving(self) -> None:
        try:
            with self.waits("snapshot to be written"):
                self._saving.finish(self.args.save_timeout_s)
        except UNSAVED as error:
            self._tell_failure(error)

    def _tell_failure(self, error: Exception) -> None:
        self.context.report.event("save_failed", {"reason": str(error)})
        sys.stderr.write(f"no snapshot was taken: {error}\n")
        self._requests.answer(None, str(error))
        if isinstance(error, Disconnected):
            self._due = True  # of a role that comes back

    def status(self) -> Mapping[str, Any]:
        return {
            "updates": self.updates,
            "rates": {name: round(rate, 1) for name, rate in self._shown.rates().items()},
            "waiting": self.waits.current(),
            "wait_s": self.waits.totals(),
            "device_s": self._device_seconds(),
            "sampler": self.clients.sampler.stats(),
        }

    def _device_seconds(self) -> Mapping[str, float]:
        return self.agent.device_seconds() if isinstance(self.agent, MeasuresDevice) else {}

    def _report(self, kind: str) -> None:
        """The carry is kept for the next report, which may begin in the middle of a window."""
        if kind not in self._report_carries:
            self._report_carries[kind] = self.agent.init_report(self.args.batch_size)
        for number in range(self.args.report_batches):
            batch = self._next_reported(kind)
            self._report_carries[kind], metrics = self.agent.report(self._report_carries[kind], batch)
            self._send_metrics(metrics, kind)
            if number == 0:
                self._send_videos(metrics, kind)

    def _next_reported(self, kind: str) -> Arrays:
        try:
            return next(self._streams[kind])
        except (Disconnected, ReplayError):  # which close the agent's stream if it is a generator
            self._streams[kind] = self.agent.stream(self._sources[kind])
            raise

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
