"""The replay role: keeps the steps of all environments and hands out batches at the configured train ratio."""

from __future__ import annotations

import gc
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays, save_arrays
from dreamfleet.checkpoint.manifest import add_outside_files, read_manifest
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import RoleContext
from dreamfleet.core.errors import CheckpointError, DeadlineExceeded, Disconnected, Stopped
from dreamfleet.core.interfaces import Arrays, FileBackedReplay, Replay, ReplaySave
from dreamfleet.core.stop import Stop
from dreamfleet.core.text.words import waits_status
from dreamfleet.core.waits import Wait, Waits
from dreamfleet.metrics.sections import SectionTotals, server_totals
from dreamfleet.metrics.usage import ProcessUsage
from dreamfleet.replay.limiter import SamplesPerInsert
from dreamfleet.roles.connect import (
    EPOCH,
    RUN_STEP,
    RunEnd,
    StatusReports,
    commit_part,
    connect,
    requested_snapshot,
    retention,
    server_security,
    write_interval_s,
)
from dreamfleet.roles.logger_client import LoggerClient
from dreamfleet.roles.rollback import EVAL_PART, LIMITER_PART, TRAIN_PART, Point, own_part, point_in
from dreamfleet.transport.server import Server

CLOSE_S = 5.0

MakeStream = Callable[[Replay, str], Iterator[Arrays]]
Store = Callable[[], Replay]


def run_replay(make_train: Store, make_eval: Store, make_stream: MakeStream, args: FleetArgs, ctx: RoleContext) -> None:
    """Runs the role, and another one in its place whenever the agent goes back to a snapshot."""
    back_to: Point | None = None
    while True:
        role = ReplayRole(make_train(), make_eval(), make_stream, args)
        back_to = role.run(ctx, back_to)
        if back_to is None:
            return
        del role
        gc.collect()  # its steps leave memory before those of the next one come


class ReplayRole:
    """Train steps and train samples pass the limiter; eval steps, report and eval samples do not.

    It holds what follows one snapshot, or none. When the agent goes back to another one, or to the same again, the role
    ends and another one takes its place: see `go_back`. So nothing is left of the former agent's requests. Steps of
    it that come even later name another epoch than the one that the actor has asked for since, and are refused.
    """

    def __init__(self, train: Replay, evaluation: Replay, make_stream: MakeStream, args: FleetArgs) -> None:
        self.args = args
        self.train = train
        self.evaluation = evaluation
        self.limiter = make_limiter(args, train)
        self.waits = Waits()
        self._sections = SectionTotals()
        self._usage = ProcessUsage()
        # Held while the training replay and the limiter's count may differ; where both are needed, in this order.
        self._insert_lock = threading.Lock()
        self._sample_lock = threading.Lock()
        self._snapshots = Snapshots(Path(args.logdir), retention(args))
        self._save_s = max(args.wait_timeout_s, args.save_timeout_s)
        self._pool = ThreadPoolExecutor(2, "replay-save")
        self._writing: list[Future[None]] = []  # the two parts of the snapshot in progress
        self._captured = (-1, "")  # its step and token
        self._step = 0  # of the run, with the newest step in the training replay; guarded by _insert_lock
        self._epoch = secrets.randbits(62)  # of the agent that inserts; guarded by _insert_lock
        self._began: Path | None = None  # with this snapshot
        self._used = False  # whether anything was asked for since
        self._failed: Exception | None = None  # of an insert: its steps are missing before the next ones
        self._back_to: Point | None = None  # where the role that takes this one's place begins
        self._turn = Stop()  # ends `run`: this role stops, or goes back
        self._server: Server | None = None  # the one that it serves
        self._streams = {
            "train": make_stream(LimitedReplay(train, self.limiter, self._await_sample, self._sample_lock), "train"),
            "report": make_stream(train, "report"),
            "eval": make_stream(evaluation, "eval"),
        }

    def add_batch(self, data: Arrays) -> None:
        rows = dict(data)
        step, epoch = rows.pop(RUN_STEP, None), rows.pop(EPOCH, None)
        with self._all_or_refused(), self.waits(Wait.LEARNER_TO_SAMPLE):
            self.limiter.await_insert(self.args.wait_timeout_s, partial(self._notify_pending, "add_batch"))
        with self._insert_lock, self._all_or_refused():
            self._take_from(epoch)
            self.train.add_batch(rows)
            self.limiter.inserted(len(rows["stream"]))
            self._step = self._step + len(rows["stream"]) if step is None else int(step)

    def add_batch_eval(self, data: Arrays) -> None:
        rows = dict(data)
        epoch = rows.pop(EPOCH, None)
        with self._insert_lock, self._all_or_refused():
            self._take_from(epoch)
            self.evaluation.add_batch(rows)

    def _take_from(self, epoch: np.ndarray | None) -> None:
        """Refuses steps of another epoch; those that name none are of an actor in this process."""
        if epoch is not None and int(epoch) != self._epoch:
            raise Disconnected("these steps come from an agent that has ended, or from before replay was restarted")
        self._refuse_incomplete()
        self._used = True

    @contextmanager
    def _all_or_refused(self) -> Iterator[None]:
        """Refuse inserts and snapshots after a failed insert: they would keep the gap that it has left.

        The lock is held until that is noted, or who waits for it would come first.
        """
        try:
            yield
        except (Disconnected, Stopped):
            raise  # the actor deals with the first; the second ends the role
        except Exception as error:
            self._used = True
            self._failed = self._failed or error
            raise

    def _refuse_incomplete(self) -> None:
        """Raise the error of the insert that failed: the agent treats each of them in the same way."""
        if self._failed:
            raise self._failed.with_traceback(None)

    def sample_batch_train(self, data: Arrays) -> Arrays:
        self._used = True
        with self.waits(Wait.ACTOR_TO_INSERT):
            return next(self._streams["train"])

    def _await_sample(self) -> None:
        self.limiter.await_sample(self.args.wait_timeout_s, partial(self._notify_pending, "sample_batch_train"))

    def _notify_pending(self, method: str) -> None:
        if self._server:
            self._server.notify_pending(method)

    def sample_batch_report(self, data: Arrays) -> Arrays:
        self._used = True
        return next(self._streams["report"])

    def sample_batch_eval(self, data: Arrays) -> Arrays:
        self._used = True
        return next(self._streams["eval"])

    def update(self, data: Arrays) -> Arrays:
        self._used = True
        return {"missing": np.array(self.train.update(data), np.int64)}

    def sizes(self, data: Arrays) -> Arrays:
        """How many windows each replay can serve, how many steps were ever inserted, the run's step by then, and the
        epoch, which steps sent from now on must name.

        An actor that has found out that steps were lost also says the run's step, which counts them.
        """
        answer = {
            "train": np.array(len(self.train), np.int64),
            "eval": np.array(len(self.evaluation), np.int64),
            "inserts": np.array(self.limiter.stats()["inserts"], np.int64),
            "step": np.array(self._step, np.int64),
            EPOCH: np.array(self._epoch, np.int64),
        }
        with self._insert_lock:
            self._step = max(self._step, int(data.get(RUN_STEP, 0)))
        return answer

    def save(self, data: Arrays) -> Arrays:
        """Adds replay's part to the snapshot that the learner has begun; returns of how many steps and which step."""
        answer = self.capture(data)
        self.saved(data)
        return answer

    def capture(self, data: Arrays) -> Arrays:
        """Fixes what replay's part holds, at this moment and no later one; `saved` waits until it is written."""
        if wait(self._writing, self._save_s).not_done:  # left over from a snapshot that the learner gave up
            raise DeadlineExceeded(f"the snapshot before this one was not written within {self._save_s:g} s")
        asked = requested_snapshot(data)
        folder = self._snapshots.add_part(*asked, "replay")
        with self._inserts_and_samples_held():
            self._refuse_incomplete()
            train = begin_save(self.train)
            limiter = {**self.limiter.save(), "step": self._step}
        try:
            evaluation = begin_save(self.evaluation)
        finally:  # whatever happened there: until it is written, the chunks of this one stay in memory
            self._writing = [self._pool.submit(self._write_train, folder, train, limiter)]
        self._writing.append(self._pool.submit(self._write_eval, folder, evaluation))
        self._captured = asked
        counts = {"inserts": limiter["size"], "step": limiter["step"], "here": self._snapshots.shares(folder)}
        return {key: np.array(value, np.int64) for key, value in counts.items()}

    @contextmanager
    def _inserts_and_samples_held(self) -> Iterator[None]:
        """While the training replay and the limiter's count agree, and stay as they are."""
        with ExitStack() as held:
            for lock in (self._insert_lock, self._sample_lock):
                if not lock.acquire(timeout=self._save_s):
                    raise DeadlineExceeded(f"the train replay was not captured within {self._save_s:g} s")
                held.callback(lock.release)
            yield

    def saved(self, data: Arrays) -> None:
        """Waits until what was captured last is written."""
        if requested_snapshot(data) != self._captured:
            raise Disconnected("replay was started again after its part of the snapshot was captured")
        for writing in self._writing:
            try:
                writing.result(self._save_s)
            except TimeoutError:
                text = f"replay's part of a snapshot was not written within {self._save_s:g} s"
                raise DeadlineExceeded(f"{text}: look at the disk of {self.args.logdir}") from None
        folder = self._snapshots.pending(self._captured[0])
        files: dict[Path, int] = {}
        for replay in (self.train, self.evaluation):
            files.update(replay.saved_files() if isinstance(replay, FileBackedReplay) else {})
        add_outside_files(folder, self._snapshots.run_dir, files)

    def committed(self, data: Arrays) -> None:
        commit_part(self._snapshots, "replay", data)
        if requested_snapshot(data) != self._captured:
            return  # of a replay that was started again meanwhile: what it holds now is in no snapshot
        try:
            self._keep_files()
        except CheckpointError as error:  # what was needed until now stays, and what was saved last
            sys.stderr.write(f"{error}: replay deletes nothing that earlier snapshots needed\n")
        self.train.committed()
        self.evaluation.committed()

    def go_back(self, data: Arrays) -> Arrays:
        """For the learner, before it begins: from now on this replay holds what follows the snapshot `data` names.

        Returns the run's step once that is so. Until then the answer is `Disconnected`: ask again.
        """
        point = point_in(data)
        folder = own_part(self._snapshots, point)
        with self._insert_lock:
            if folder == self._began and not self._used and not self._back_to:
                self._epoch = secrets.randbits(62)
                return {"step": np.array(self._step, np.int64)}
            self._epoch = -1  # nobody's
            self._back_to = point
        self._turn.set()
        raise Disconnected(f"replay is going back to step {point.step}: ask again")

    def restore(self, back_to: Point | None = None) -> None:
        """From the newest snapshot, or the one that the agent has gone back to."""
        folder = own_part(self._snapshots, back_to) if back_to else self._snapshots.latest()
        self._began = folder
        if folder is not None:
            self._keep_files()
            self.train.load(load_arrays(folder / TRAIN_PART))
            self.evaluation.load(load_arrays(folder / EVAL_PART))
            self.limiter.load(load_arrays(folder / LIMITER_PART))
            self._step = int(read_manifest(folder)["step"])

    def _keep_files(self) -> None:
        """Other snapshots that the run could continue from may need chunks that are evicted by now."""
        needed = self._snapshots.outside_files()
        for replay in (self.train, self.evaluation):
            if isinstance(replay, FileBackedReplay):
                replay.keep_files(needed)

    def _write_train(self, folder: Path, train: ReplaySave, limiter: Mapping[str, float]) -> None:
        save_arrays(folder / TRAIN_PART, train.write())
        counts = {key: np.array(value, np.float64) for key, value in limiter.items()}
        save_arrays(folder / LIMITER_PART, counts)

    def _write_eval(self, folder: Path, evaluation: ReplaySave) -> None:
        save_arrays(folder / EVAL_PART, evaluation.write())

    def put_off_writes(self, when: Callable[[], bool]) -> None:
        for replay in (self.train, self.evaluation):
            if isinstance(replay, FileBackedReplay):
                replay.put_off_writes(when)

    def run(self, context: RoleContext, back_to: Point | None = None) -> Point | None:
        """Serves until it is stopped. Returns where another role has to begin in its place, if the agent went back."""
        self.restore(back_to)
        context.stop.also_sets(self._turn)
        self.put_off_writes(context.disk_low.is_set)
        addresses = self.args.replay_addr
        server = Server(addresses, name="replay", security=server_security("replay", self.args))
        for handler in (self.add_batch, self.add_batch_eval, self.sample_batch_train, self.sample_batch_report):
            server.bind(handler.__name__, handler)
        for handler in (self.sample_batch_eval, self.update, self.sizes, self.capture, self.saved, self.committed):
            server.bind(handler.__name__, handler)
        server.bind("go_back", self.go_back)
        self._server = server
        ending = RunEnd(context)
        if context.by_hand or self.args.remote_replay:
            server.bind("end", ending.end)
        logger = connect("logger", "replay-logger", self.args, None, key="replay")
        server.start()
        context.report.state("ready")
        try:
            logger_client = LoggerClient(logger)
            with StatusReports(context, lambda: self.status(server)):
                while not self._turn.wait(write_interval_s(self.args.log_every)):
                    logger_client.send(self.metrics(server.stats()))
                if self._back_to and not context.stop.is_set():
                    return self._back_to
                ending.await_agent(server.stats()["sizes/requests"] > 0, self.args.save_timeout_s)
                self.limiter.close()
                logger_client.send_last(self.metrics(server.stats()))
                ending.over()
                return None
        finally:
            self.limiter.close()
            logger.close()
            server.close(self._save_s if self._back_to else CLOSE_S)  # a snapshot's part may still be written
            self._pool.shutdown()
            self.train.close()
            self.evaluation.close()

    def metrics(self, server: Mapping[str, float]) -> dict[str, float]:
        """Since the last call, where it is not a state; `server` are the server's counts."""
        return {
            **{f"replay/{name}": value for name, value in self.train.stats().items()},
            "replay/eval_items": len(self.evaluation),
            **{f"limiter/{name}": value for name, value in self.limiter.stats().items()},
            **self.waits.metrics("replay"),
            **{f"timer/replay/{name}": value for name, value in self._sections.stats(server_totals(server)).items()},
            **self._usage.metrics("replay"),
        }

    def status(self, server: Server) -> Mapping[str, Any]:
        return {
            "replay": self.train.stats(),
            "eval_items": len(self.evaluation),
            "limiter": {**self.limiter.stats(), **self.limiter.status()},
            **waits_status(self.waits.current()),
            "server": server.stats(),
        }


class WholeSave(NamedTuple):
    """The save of a replay that has no `begin_save`: made at once, while inserts and samples wait."""

    arrays: Arrays

    def write(self) -> Arrays:
        return self.arrays


def begin_save(replay: Replay) -> ReplaySave:
    """Begin a save, also of a replay with the former interface, which has `save` alone."""
    if hasattr(replay, "begin_save"):
        return replay.begin_save()
    former: Any = replay
    return WholeSave(former.save())


class LimitedReplay:
    """A replay whose training samples wait for the limiter."""

    def __init__(
        self, replay: Replay, limiter: SamplesPerInsert, await_sample: Callable[[], None], lock: threading.Lock
    ) -> None:
        self._replay = replay
        self._limiter = limiter
        self._await_sample = await_sample
        self._lock = lock  # held while windows are drawn and counted

    def sample(self, n: int, mode: str) -> Arrays:
        self._await_sample()
        with self._lock:
            batch = self._replay.sample(n, mode)
            self._limiter.sampled(n)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replay, name)


def make_limiter(args: FleetArgs, replay: Replay) -> SamplesPerInsert:
    length = args.consec_train * args.batch_length + args.replay_context
    return SamplesPerInsert(
        samples_per_insert=args.train_ratio / (args.consec_train * args.batch_length),
        min_size=args.batch_size * length,
        tolerance=4 * args.batch_size,
        has_windows=lambda: len(replay) > 0,
    )
