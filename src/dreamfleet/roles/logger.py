"""The logger role: follows the episodes of every environment and writes what the other roles measure."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays, save_arrays
from dreamfleet.checkpoint.manifest import read_manifest
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import RoleContext, current_context
from dreamfleet.core.errors import ProtocolError
from dreamfleet.core.events import Event
from dreamfleet.core.files.disk import sync
from dreamfleet.core.interfaces import Arrays, Logger
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.metrics.episodes import EpisodeStats
from dreamfleet.metrics.sections import SectionTotals, server_totals
from dreamfleet.metrics.sinks.jsonl import JsonlSink, last_step, move_newer_aside
from dreamfleet.metrics.usage import MachineUsage, ProcessUsage
from dreamfleet.metrics.workers import PREFIX, WorkerMetrics
from dreamfleet.roles.connect import (
    RUN_STEP,
    RunEnd,
    StatusReports,
    commit_part,
    requested_snapshot,
    retention,
    server_security,
    write_interval_s,
)
from dreamfleet.transport.codec import pack_json, unpack_json
from dreamfleet.transport.server import Server

RECENT = 100  # episodes in the mean that the status shows
FRESH = 10_000  # episodes between two writes whose distribution is shown
MIN_SCORED = 10  # episodes without which a mean return says too little to call a snapshot the best
RECORDS = ("metrics.jsonl", "episodes.jsonl")
PART = "logger.safetensors"
MAX_CLOSE_S = 60.0


class LoggerRole:
    """Train episodes are logged under `episode/`, those of evaluation environments under `eval/`."""

    def __init__(self, logger: Logger, args: FleetArgs, now: Callable[[], float] = time.monotonic) -> None:
        self.args = args
        self.logger = logger
        self.episodes = {
            "train": EpisodeStats(args.episode_timeout, now),
            "eval": EpisodeStats(args.episode_timeout, now),
        }
        self.workers = WorkerMetrics()
        self.refused = 0  # messages with figures
        self.finished = {"train": 0, "eval": 0}
        self._lock = threading.Lock()  # guards the logger, the episodes, their counts and the workers' figures
        self._recent: dict[str, list[float]] = {"train": [], "eval": []}
        self._last: dict[str, float] = {}
        self._towards_goal: deque[float] = deque(maxlen=args.goal_episodes)
        self._fresh: dict[str, deque[tuple[float, int]]] = {mode: deque(maxlen=FRESH) for mode in PREFIX}
        self._sections = SectionTotals()
        self._usage = ProcessUsage()
        self._machine = MachineUsage(Path(args.logdir))
        context = current_context()
        self._report = context.report
        self._file = JsonlSink(Path(args.logdir) / "episodes.jsonl", context.warn)
        self._snapshots = Snapshots(Path(args.logdir), retention(args))

    def tran(self, data: Arrays) -> None:
        """The steps before these may never have come: messages on their way to a logger that died are lost."""
        with self._lock:
            self.logger.step = int(data[RUN_STEP]) if RUN_STEP in data else self.logger.step + len(data["env"])
            self._add_steps(data, "train")

    def tran_eval(self, data: Arrays) -> None:
        with self._lock:
            self._add_steps(data, "eval")

    def add(self, data: Arrays) -> None:
        """Metrics of another role, `{"prefix": ..., "metrics": {name: number}}`, or the figures of an env worker."""
        try:
            message = unpack_json(data["json"])
            with self._lock:
                # The worker first: a key `metrics` in what it sends must not make it a role, whose metrics are trusted.
                if not isinstance(message, dict) or "worker" in message or "metrics" not in message:
                    self.workers.add(message)
                else:
                    metrics, prefix = _metrics(message)
                    self.logger.add(metrics, prefix=prefix)
        except ProtocolError as error:  # no run ends for want of a metric
            self.refused += 1
            if self.refused == 1:
                self._report.event(Event.METRICS_REFUSED, {"reason": str(error)})

    def video(self, data: Arrays) -> None:
        """Frames by name, each [time, height, width, channels]."""
        with self._lock:
            self.logger.add(data)

    def write(self) -> None:
        with self._lock:
            self.logger.add(self.workers.take())
            for mode, episodes in self._fresh.items():
                if episodes:
                    values = np.array(episodes)
                    self.logger.add({"returns": values[:, 0], "lengths": values[:, 1]}, prefix=PREFIX[mode])
                    episodes.clear()
            self.logger.write()

    def measure(self, server: Mapping[str, float]) -> None:
        """Adds what this role and the machine use, and what the time of its server has gone to."""
        sections = self._sections.stats(server_totals(server))
        with self._lock:
            self.logger.add({f"timer/logger/{name}": value for name, value in sections.items()})
            self.logger.add({**self._usage.metrics("logger"), **self._machine.metrics()})

    def save(self, data: Arrays) -> Arrays:
        """Adds the logger's part to a snapshot; returns the step, and the mean return if there are enough episodes."""
        asked = requested_snapshot(data)
        with self._lock:
            score = float(np.mean(self._recent["train"])) if len(self._recent["train"]) >= MIN_SCORED else np.nan
            state = {"step": np.array(self.logger.step, np.int64), "json": pack_json(self._counts())}
            for mode, episodes in self.episodes.items():
                state.update({f"{mode}/{key}": value for key, value in episodes.save().items()})
        folder = self._snapshots.add_part(*asked, "logger")
        save_arrays(folder / PART, state)
        here = np.array(self._snapshots.shares(folder), np.int64)
        return {"step": state["step"], "score": np.array(score, np.float64), "here": here}

    def committed(self, data: Arrays) -> None:
        """What was recorded up to the snapshot is brought to disk here, where no training waits for it."""
        commit_part(self._snapshots, "logger", data)
        folder = Path(self.args.logdir)
        with contextlib.suppress(OSError):  # such as a full disk: the snapshot counts nevertheless
            for path in [*(folder / name for name in RECORDS if (folder / name).exists()), folder]:
                sync(path)

    def restore(self) -> None:
        """Back to the newest snapshot, and what was written of later steps is moved aside: it is no longer true.

        Restarted alone, in a fleet that goes on, the logger does not go back: it continues from its last lines, and
        what it missed of the episodes in progress makes them worth nothing.
        """
        folder = self._snapshots.latest()
        if folder is not None and (folder / PART).exists():
            self._load(load_arrays(folder / PART))
            # The snapshot's step is that of replay and the agent; the logger's own was taken a moment later.
            self.logger.step = int(read_manifest(folder).get("step", self.logger.step))
        files = [Path(self.args.logdir) / name for name in RECORDS]
        if self.args.restarted == "alone":
            self.logger.step = max(self.logger.step, *map(last_step, files))
            return
        for path in files:
            if lost := move_newer_aside(path, self.logger.step):
                detail = {"file": path.name, "lines": lost, "after_step": self.logger.step}
                self._report.event(Event.LINES_ASIDE, detail)

    def _counts(self) -> dict[str, Any]:
        return {
            "finished": self.finished,
            "recent": self._recent,
            "last": self._last,
            "towards_goal": list(self._towards_goal),
        }

    def _load(self, data: Mapping[str, np.ndarray]) -> None:
        if "json" not in data:  # of format 1, or of imported steps
            return
        counts = unpack_json(data["json"])
        self.finished, self._recent, self._last = counts["finished"], counts["recent"], counts["last"]
        self._towards_goal.extend(counts["towards_goal"])
        for mode, episodes in self.episodes.items() if self.args.restarted != "alone" else ():
            prefix = f"{mode}/"
            episodes.load({key.removeprefix(prefix): data[key] for key in data if key.startswith(prefix)})

    def run(self, context: RoleContext) -> None:
        self.restore()
        addresses = self.args.logger_addr
        server = Server(addresses, name="logger", security=server_security("logger", self.args))
        for handler in (self.tran, self.tran_eval, self.add, self.video, self.save, self.committed):
            server.bind(handler.__name__, handler)
        ending = RunEnd(context)
        if context.by_hand:
            server.bind("end", ending.end)
        server.start()
        context.report.state("ready")
        try:
            with StatusReports(context, lambda: self.status(server)):
                while not context.stop.wait(write_interval_s(self.args.log_every)):
                    self.measure(server.stats())
                    self.write()
                ending.await_agent(server.stats()["tran/requests"] > 0, self.args.save_timeout_s)
                ending.over()
        finally:
            server.close()
            self.measure(server.stats())
            self.write()
            self._file.close()
            if isinstance(self.logger, MetricsLogger):
                self.logger.close(close_s(self.args.stop_timeout_s))

    def status(self, server: Server) -> Mapping[str, Any]:
        with self._lock:
            recent = {mode: float(np.mean(returns)) for mode, returns in self._recent.items() if returns}
            return {
                "step": self.logger.step,
                "episodes": dict(self.finished),
                "refused": self.refused,
                "dropped": {mode: stats.dropped for mode, stats in self.episodes.items()},
                "mean_return": recent,
                "last_return": dict(self._last),
                "sinks": self.logger.sinks() if isinstance(self.logger, MetricsLogger) else {},
                "server": server.stats(),
            }

    def _add_steps(self, data: Arrays, mode: str) -> None:
        for episode in self.episodes[mode].add(data):
            self.finished[mode] += 1
            self._last[mode] = episode["return"]
            self._recent[mode] = [*self._recent[mode][1 - RECENT :], episode["return"]]
            self._fresh[mode].append((episode["return"], episode["length"]))
            if mode == "train":
                self._compare_with_goal(episode["return"])
            self._file.write({"step": self.logger.step, "time": time.time(), "mode": mode, **episode})
            self.logger.add({key: value for key, value in episode.items() if key != "env"}, prefix=PREFIX[mode])

    def _compare_with_goal(self, episode_return: float) -> None:
        self._towards_goal.append(episode_return)
        goal, recent = self.args.goal, self._towards_goal
        if goal is not None and len(recent) == recent.maxlen and float(np.mean(recent)) >= goal:
            self._report.finish(f"run.goal={goal:g} reached: the mean return of {len(recent)} episodes")


def _metrics(message: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    metrics, prefix = message["metrics"], message.get("prefix")
    if not isinstance(metrics, dict) or not isinstance(prefix, str | None):
        raise ProtocolError("metrics are no dictionary, or their prefix is no text")
    return metrics, prefix


def close_s(allowed_s: float) -> float:
    """How long the sinks may take at the end of a role that has so much time for it."""
    return min(allowed_s / 2, MAX_CLOSE_S)
