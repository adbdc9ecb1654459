"""The learner's side of snapshots: when one is taken, how its parts come together, and how a run begins from one."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Mapping
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
from dreamfleet.core.clock import LocalClock
from dreamfleet.core.context import RoleContext
from dreamfleet.core.errors import (
    CheckpointError,
    DeadlineExceeded,
    Disconnected,
    NonFinite,
    ReplayError,
    TransportError,
)
from dreamfleet.core.events import Event
from dreamfleet.core.files.open_files import retry_without_files
from dreamfleet.core.interfaces import Agent, Arrays, ResetsOptimizer, UpgradesArrays
from dreamfleet.core.timer import Timer
from dreamfleet.core.waits import Wait, Waits
from dreamfleet.roles.connect import retention, snapshot_request
from dreamfleet.roles.learner_clients import GONE_AFTER_S, LearnerClients, expect_connected
from dreamfleet.roles.rollback import send_back
from dreamfleet.transport.client import Client

LOOK_EVERY_S = 1.0  # for somebody who asks for a snapshot
# What may keep one snapshot from being taken, and the next one not.
UNSAVED = (CheckpointError, ReplayError, TransportError, DeadlineExceeded, OSError)


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


class SnapshotCoordinator:
    """Takes snapshots over agent, replay and logger, one at a time, and restores the newest.

    The learner calls `poll` after every update. Training waits while a snapshot is captured. Its files are written by
    a thread of their own, and the next call of `poll` after that reports what went wrong. Only the last snapshot of a
    run, which `finish` takes, must succeed.
    """

    def __init__(
        self,
        agent: Agent,
        args: FleetArgs,
        clients: LearnerClients,
        context: RoleContext,
        waits: Waits,
        timer: Timer,
    ) -> None:
        self._agent = agent
        self._args = args
        self._clients = clients
        self._context = context
        self._waits = waits
        self._timer = timer
        self._snapshots = Snapshots(Path(args.logdir), retention(args))
        self._requests = SnapshotRequests(self._snapshots.folder)
        self._should_look = LocalClock(LOOK_EVERY_S)
        self._background = Background("the thread that writes snapshots")
        self._due = False  # a snapshot is to be taken as soon as the one before it is written
        self._disk_was_low = False
        self._saved = (-1, -1)  # step and updates

    def restore(self) -> int:
        """Load the agent of the newest snapshot, send replay back to it, and return the number of updates so far."""
        self._snapshots.claim()
        folder = self._snapshots.latest()
        for snapshot in self._snapshots.damaged():
            detail = {"snapshot": snapshot.folder.name, "reason": str(snapshot.damage)}
            self._context.report.event(Event.DAMAGED, detail)
        has_agent = folder is not None and (folder / "agent.safetensors").exists()  # not if it is of imported steps
        if not has_agent and self._args.from_checkpoint:
            self._begin_from(find_agent(Path(self._args.from_checkpoint)))
        updates = 0
        if folder is not None:
            if has_agent:
                self._agent.load(load_arrays(folder / "agent.safetensors"))
            manifest = read_manifest(folder)
            updates = int(manifest["updates"])
            self._saved = (int(manifest["step"]), updates)
            counts = {"step": self._saved[0], "updates": updates}
            self._context.report.event(Event.RESTORE, {"snapshot": folder.name, **counts})
        with self._waits(Wait.REPLAY_TO_START):
            send_back(self._clients.sampler, folder, self._context)
        return updates

    def request(self) -> None:
        """Have one taken by the next `poll` that finds the one before it written."""
        self._due = True

    def poll(self, updates: int) -> None:
        """Take a snapshot if one is due or asked for, and none is being written."""
        if self.busy:
            return
        self._finish_writing()
        asked = self._should_look() and self._requests.waiting()
        due = self._due and not self._disk_is_low()
        if not due and not asked:
            return
        self._due = False
        try:
            self.save(updates)
        except UNSAVED as error:
            self._report_failure(error)

    def save(self, updates: int) -> None:
        """Take one now.

        Replay is captured first and the agent right after it, before the next update: no step in the snapshot is newer
        than its weights. The files are written while training goes on, and the folder is renamed last.
        """
        capture = self._capture(updates)
        if capture is None:
            self._requests.answer(self._snapshots.newest())
        elif self._clients.saving is None:
            self._write(capture, (self._clients.replay, self._clients.logger))
        else:
            saving = self._clients.saving
            self._background.start(lambda: self._write(capture, saving))

    def finish(self, updates: int) -> None:
        """Take the last one, after the one under way."""
        self._finish_writing()  # until then, its clients belong to the thread that writes
        expect_connected(self._clients.saving or (), self._args.save_timeout_s)
        retry_without_files(lambda: self._save_last(updates), self._args.save_timeout_s)

    def close(self) -> None:
        """Where training failed, let the snapshot under way be written."""
        with contextlib.suppress(*UNSAVED, NonFinite):
            self.await_written(GONE_AFTER_S)

    @property
    def busy(self) -> bool:
        """Whether one is being written."""
        return self._background.busy

    def await_written(self, timeout_s: float) -> None:
        """Wait for the one under way and raise what went wrong with it, once."""
        self._background.finish(timeout_s)

    def _begin_from(self, source: Path) -> None:
        agent = self._agent
        to_reset = agent.optimizer_to_reset if isinstance(agent, ResetsOptimizer) else None
        upgrade = agent.upgrade_arrays if isinstance(agent, UpgradesArrays) else None
        arrays, loaded = merge(agent.save(), source, self._args.from_checkpoint_regex, to_reset, upgrade)
        agent.load(arrays)
        detail = {"taken": loaded.taken, "skipped": loaded.skipped, "mismatched": loaded.mismatched}
        detail |= {"reset": loaded.reset} if loaded.reset else {}
        self._context.report.event(Event.FROM_CHECKPOINT, detail)
        self._context.warn(loaded.text(source))

    def _capture(self, updates: int) -> Capture | None:
        """What training waits for; None if there is nothing new to save."""
        with self._waits(Wait.SNAPSHOT_TO_BE_CAPTURED), self._timer.section("save"):
            named = int(self._clients.replay.call("sizes", {}).result()["step"])
            if (named, updates) == self._saved:
                return None
            self._snapshots.begin(named)
            asked = snapshot_request(named, self._snapshots.token)
            method = "capture" if self._clients.saving else "save"
            replay = self._clients.replay.call(method, asked).result()
            logger = self._clients.logger.call("save", asked).result()
            # Copies: the next update may change the agent's own arrays in place.
            arrays = {key: np.array(value) for key, value in self._agent.save().items()}
        score = float(logger.get("score", np.nan))
        step = int(replay["step"])
        lost = step - int(replay["inserts"])
        parts = {"agent", *(name for name, part in (("replay", replay), ("logger", logger)) if part.get("here"))}
        return Capture(named, step, lost, updates, score if np.isfinite(score) else None, arrays, asked, parts)

    def _write(self, capture: Capture, clients: tuple[Client, Client]) -> None:
        """The rest of a save, on the thread that writes snapshots if there is one."""
        if name := find_non_finite(capture.arrays.items()):
            raise NonFinite(
                f"the agent's array {name!r} is not finite after update {capture.updates}, so no snapshot is taken: "
                "continue from the one before with a lower agent.opt.lr, or look for damaged observations or rewards"
            )
        folder = self._snapshots.pending(capture.named)
        save_arrays(folder / "agent.safetensors", capture.arrays)
        config = Path(self._args.logdir) / CONFIG_FILE
        if config.exists():
            shutil.copyfile(config, folder / CONFIG_FILE)
        if self._clients.saving:
            replay, _ = clients
            replay.call("saved", capture.asked).result()
        about = {
            "version": __version__,
            "config": CONFIG_FILE if config.exists() else None,
            "spaces": spaces(self._agent),
        }
        self._commit(capture, about, clients)

    def _commit(self, capture: Capture, about: Mapping[str, Any], clients: tuple[Client, Client]) -> None:
        step, updates = capture.step, capture.updates
        counts = {"step": step, "updates": updates, "lost": capture.lost, "score": capture.score}
        final = self._snapshots.commit(capture.named, {**counts, **about}, capture.parts)
        self._saved = (step, updates)
        self._context.report.event(Event.SNAPSHOT, {"step": step, "updates": updates})
        self._requests.answer(final)
        data = {**capture.asked, "step": np.array(step, np.int64), "updates": np.array(updates, np.int64)}
        for answer in [client.call("committed", data) for client in clients]:
            answer.result()

    def _save_last(self, updates: int) -> None:
        self.save(updates)
        self.await_written(self._args.save_timeout_s)

    def _finish_writing(self) -> None:
        try:
            with self._waits(Wait.SNAPSHOT_TO_BE_WRITTEN):
                self.await_written(self._args.save_timeout_s)
        except UNSAVED as error:
            self._report_failure(error)

    def _disk_is_low(self) -> bool:
        """Whether there is no room for snapshots that nobody asked for. There may be later, so training goes on."""
        low = self._context.disk_low.is_set()
        if low and not self._disk_was_low:
            self._context.warn("the disk is nearly full: no snapshot until there is room, but for the last one")
        self._disk_was_low = low
        return low

    def _report_failure(self, error: Exception) -> None:
        self._context.report.event(Event.SAVE_FAILED, {"reason": str(error)})
        sys.stderr.write(f"no snapshot was taken: {error}\n")
        self._requests.answer(None, str(error))
        if isinstance(error, Disconnected):
            self._due = True  # of a role that comes back
