"""All roles in one thread, in lock step: the run that gives the same result every time.

A round is one step of every environment, one policy call for all of them, and the updates that the train ratio owes
for these steps. The roles are those of a fleet; only the calls between them are direct.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays, save_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.clock import LocalClock
from dreamfleet.core.context import Reporter, RoleContext, set_context
from dreamfleet.core.errors import CheckpointError, CheckpointMismatch, ReplayError
from dreamfleet.core.events import Event
from dreamfleet.core.interfaces import Agent, Arrays, HasDescription, Logger, Replay
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.metrics.sinks.jsonl import JsonlSink
from dreamfleet.roles.actor import TO_LOGGER, ActorRole
from dreamfleet.roles.connect import StatusReports, requested_snapshot
from dreamfleet.roles.env_worker.instance import MakeEnv
from dreamfleet.roles.learner import LearnerRole
from dreamfleet.roles.learner_clients import LearnerClients
from dreamfleet.roles.lockstep.agent import LockstepAgent
from dreamfleet.roles.lockstep.calls import direct_client, no_server
from dreamfleet.roles.lockstep.envs import LockstepEnvs
from dreamfleet.roles.logger import LoggerRole, close_s
from dreamfleet.roles.replay import MakeStream, ReplayRole
from dreamfleet.transport.codec import pack_json, unpack_json

PART = "single.safetensors"  # of a snapshot: what a fleet has no use for
# What the parts would do by the clock happens here by steps, or between two rounds.
NEVER = {"log_every": 0.0, "report_every": 0.0, "save_every": 0.0}


@dataclass(frozen=True)
class SingleParts:
    """What a run is built from; all of it is this process's own."""

    agent: Agent
    replay_train: Replay
    replay_eval: Replay
    make_stream: MakeStream
    logger: Logger
    make_env_train: MakeEnv
    make_env_eval: MakeEnv


class EndingReporter:
    """Keeps the reason to end for the loop, which must not go on for as long as the supervisor takes to answer."""

    def __init__(self, report: Reporter) -> None:
        self.state = report.state
        self.status = report.status
        self.event = report.event
        self._finish = report.finish
        self.ended = False
        self.repeating = False  # reasons of the past do not count

    def finish(self, reason: str) -> None:
        if not self.repeating and not self.ended:
            self.ended = True
            self._finish(reason)


class SingleLogger(LoggerRole):
    """Time does not pass for its episodes: an environment is never silent here, however long an update takes."""

    def __init__(self, logger: Logger, args: FleetArgs) -> None:
        super().__init__(logger, args, now=lambda: 0.0)

    @contextmanager
    def past(self) -> Iterator[None]:
        """Takes in what it has seen before, without writing episodes once more."""
        written, self._file = self._file, JsonlSink(Path(os.devnull))
        try:
            yield
        finally:
            self._file.close()
            self._file = written

    def close(self, timeout_s: float) -> None:
        self._file.close()
        if isinstance(self.logger, MetricsLogger):
            self.logger.close(timeout_s)


class Unwritten:
    """In the place of the logger while rows are repeated that are in its files already."""

    step = 0

    def add(self, metrics: Mapping[str, Any], prefix: str | None = None) -> None: ...

    def write(self) -> None: ...


class SingleRole:
    """`round` is one pass of the loop. Between two rounds everything that a run consists of is at rest, and saved as
    such: nothing is in flight, and no update is owed.
    """

    def __init__(self, parts: SingleParts, args: FleetArgs, context: RoleContext) -> None:
        self.args = args
        self._ending = EndingReporter(context.report)
        self.context = RoleContext(context.name, context.stop, self._ending, context.disk_low)
        set_context(self.context)
        self.agent = LockstepAgent(parts.agent)
        self._about = parts.agent.describe() if isinstance(parts.agent, HasDescription) else None
        quiet = args.model_copy(update=NEVER)
        self.replay = ReplayRole(parts.replay_train, parts.replay_eval, parts.make_stream, quiet)
        self.replay.put_off_writes(context.disk_low.is_set)
        self.logger = SingleLogger(parts.logger, quiet)
        self.actor, self.learner = self._connect(quiet)
        self.envs = [LockstepEnvs(parts.make_env_train, args.envs, "train", args)]
        if args.eval_envs:
            self.envs.append(LockstepEnvs(parts.make_env_eval, args.eval_envs, "eval", args))
        self._should_save = LocalClock(args.save_every)
        self._written = 0  # the step of the last row of metrics
        for envs in self.envs:
            slots = self.actor.join(envs.join_request())["slot"]
            self.actor.slots.streams[slots] = envs.begin(slots)

    def run(self) -> None:
        try:
            self.restore()
            self.context.report.state("ready")
            with StatusReports(self.context, self.status):
                self.actor.finish_if_reached()
                while not self.context.stop.is_set() and not self._ending.ended:
                    self.round()
                if self._written < self.actor.steps:
                    self.write()
                self.learner.save()
        finally:
            self.close()

    def round(self) -> None:
        before = self.actor.steps
        for envs in self.envs:
            self._step(envs)
        self._train()
        step = self.actor.steps
        if self.learner.updates and _passes(self.args.report_every_steps, before, step):
            self.learner.report()
        if _passes(self.args.log_every_steps, before, step):
            self.write()
        if self._should_save() and not self.context.disk_low.is_set():
            self._try_save()

    def write(self) -> None:
        """One row of metrics, with what every part has measured since the last one."""
        self.actor.log()
        self.learner.log()
        for envs in self.envs:
            self.logger.add({"json": pack_json(envs.metrics())})
        self.logger.add({"json": pack_json({"metrics": self.replay.metrics({})})})
        self.logger.measure({})
        self.logger.write()
        self._written = self.actor.steps

    def save(self, data: Arrays) -> Arrays:
        """The logger's part of a snapshot, and beside it what brings this run back as it was."""
        answer = self.logger.save(data)
        arrays = {f"carries/{key}": value for key, value in self.agent.carries.save().items()}
        about: dict[str, Any] = {"seed": self.args.seed, "envs": {}, "checksums": {}}
        for envs in self.envs:
            record, about["checksums"][envs.mode] = envs.save()
            about["envs"][envs.mode] = envs.count
            arrays.update({f"actions/{envs.mode}/{key}": value for key, value in record.items()})
        arrays["about"] = pack_json(about)
        folder = Snapshots(Path(self.args.logdir)).add_part(*requested_snapshot(data), "logger")
        save_arrays(folder / PART, arrays)
        return answer

    def restore(self) -> None:
        folder = Snapshots(Path(self.args.logdir)).latest()
        if folder is None:
            self.learner.restore()  # from another run's agent, perhaps
            return
        if not (folder / PART).exists():
            raise CheckpointMismatch(
                f"snapshot {folder.name} was not made with run.script=single and cannot be gone on from step by step: "
                "go on with run.script=parallel, or choose another --run-dir"
            )
        arrays = load_arrays(folder / PART)
        about = unpack_json(arrays.pop("about"))
        self._expect_same(about)
        self.replay.restore()
        self.learner.restore()
        self._repeat(arrays, about)
        self.logger.restore()
        self.agent.carries.load(_under("carries/", arrays))
        self._written = self.actor.steps
        self._train()  # what was owed still, should the snapshot have been taken within a round

    def status(self) -> Mapping[str, Any]:
        """By part, as a fleet's roles would report: see `launch.single.unfold`."""
        parts = {"actor": self.actor.status(), "learner": self.learner.status()}
        parts.update(replay=self.replay.status(no_server()), logger=self.logger.status(no_server()))
        for envs in self.envs:
            if stall := envs.clock.stall():
                self.context.report.event(Event.STALL, stall)
        return {**parts, **{envs.mode: envs.status() for envs in self.envs}, "about": self._about}

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.logger.close, close_s(min(self.args.stop_timeout_s, self.args.save_timeout_s)))
            stack.callback(self.replay.train.close)
            stack.callback(self.replay.evaluation.close)
            for envs in self.envs:
                stack.callback(envs.close, self.context)

    def _step(self, envs: LockstepEnvs) -> None:
        actor, observed = self.actor, envs.step()
        if envs.mode == "train":
            result = actor.act(observed, envs.count)
            actor.after_act(observed, result, envs.count)
        else:
            result = actor.act_eval(observed, envs.count)
            actor.after_act_eval(observed, result, envs.count)
        envs.take({key: value for key, value in result[0].items() if key != "known"})

    def _train(self) -> None:
        while self.replay.limiter.can_sample():
            for _ in range(self.args.consec_train):  # a window is used up at once
                self.learner.step()

    def _repeat(self, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
        """Brings environments and episodes to where they were, in the order in which it all happened."""
        records = [envs.repeat(_under(f"actions/{envs.mode}/", arrays)) for envs in self.envs]
        row_begins = _last_row(self.actor.steps, self.args)
        writer, self.logger.logger = self.logger.logger, Unwritten()
        self._ending.repeating = True
        with self.logger.past():
            for number, rounds in enumerate(zip(*records, strict=True)):
                self.context.stop.check()
                if number * self.args.envs == row_begins:
                    self._drop_row()
                    self.logger.logger = writer
                for envs, observed in zip(self.envs, rounds, strict=True):
                    self._send_transitions(envs, observed)
            if row_begins == self.actor.steps:
                self._drop_row()
        self._ending.repeating = False
        self.logger.logger = writer
        for envs in self.envs:
            envs.expect(about["checksums"][envs.mode])

    def _drop_row(self) -> None:
        """What was measured up to here is in the files already."""
        self.logger.write()
        for envs in self.envs:
            envs.metrics()

    def _send_transitions(self, envs: LockstepEnvs, observed: Arrays) -> None:
        sent = {key: observed[key] for key in TO_LOGGER}
        sent["env"] = np.arange(envs.count, dtype=np.int32)
        if envs.mode == "train":
            self.logger.tran(sent)
        else:
            self.logger.tran_eval(sent)

    def _expect_same(self, about: Mapping[str, Any]) -> None:
        now = {"seed": self.args.seed, "run.envs": self.args.envs, "run.eval_envs": self.args.eval_envs}
        then = {
            "seed": about["seed"],
            "run.envs": about["envs"]["train"],
            "run.eval_envs": about["envs"].get("eval", 0),
        }
        for key, value in then.items():
            if now[key] != value:
                raise CheckpointMismatch(
                    f"{key}={now[key]} cannot go on from a snapshot of {key}={value} with run.script=single: set "
                    f"{key}={value}, or choose another --run-dir"
                )

    def _try_save(self) -> None:
        """As the learner's: only the last save of a run must work."""
        try:
            self.learner.save()
        except (CheckpointError, ReplayError, OSError) as error:
            self.context.report.event(Event.SAVE_FAILED, {"reason": str(error)})
            sys.stderr.write(f"no snapshot was taken: {error}\n")

    def _connect(self, args: FleetArgs) -> tuple[ActorRole, LearnerRole]:
        replay, logger = self.replay, self.logger
        samples = replay.sample_batch_train, replay.sample_batch_report, replay.sample_batch_eval
        to_logger = direct_client(
            logger.tran, logger.tran_eval, logger.add, logger.video, logger.committed, self.save
        )  # fmt: skip
        clients = LearnerClients(
            sampler=direct_client(*samples, replay.go_back, late=True),
            updater=direct_client(replay.update),
            replay=direct_client(replay.sizes, replay.save, replay.committed),
            logger=to_logger,
        )
        to_replay = direct_client(replay.add_batch, replay.add_batch_eval)
        actor = ActorRole(self.agent, args, to_replay, to_logger, self.context, lambda error: None)
        return actor, LearnerRole(self.agent, args, clients, self.context)


def _passes(every: int, before: int, step: int) -> bool:
    """Return whether the steps after `before` up to `step` include a multiple of `every`."""
    return bool(every) and step // every > before // every


def _last_row(step: int, args: FleetArgs) -> int:
    """The step of the last row of metrics that was due by `step`: the first round's end that passed a multiple."""
    due = step // args.log_every_steps * args.log_every_steps
    return -(-due // args.envs) * args.envs


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
