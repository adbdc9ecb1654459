"""The actor role: replies to observations with actions and forwards the transitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.clock import LocalClock
from dreamfleet.core.context import RoleContext
from dreamfleet.core.counters import Counters
from dreamfleet.core.errors import Disconnected, Stopped
from dreamfleet.core.events import Event
from dreamfleet.core.interfaces import Agent, Arrays, AsyncPolicy, Carry, HasDeviceCarries
from dreamfleet.core.latency import Latencies
from dreamfleet.core.text.words import waits_status
from dreamfleet.core.waits import Wait, Waits
from dreamfleet.metrics.recorder import EpisodeRecorder
from dreamfleet.metrics.sections import SectionTotals
from dreamfleet.roles.admission import MAX_PENDING_BYTES, Admission, PendingMetrics
from dreamfleet.roles.connect import EPOCH, RUN_STEP, Messages
from dreamfleet.roles.remote_workers import RemoteWorkers, read_identity
from dreamfleet.roles.slots import PADDING_SLOT, CarryTable, SlotTable, num_local_envs, protected_envs
from dreamfleet.transport.batching import BatchServer
from dreamfleet.transport.client import Client
from dreamfleet.transport.codec import pack_json

LIVE_S = 5.0
TO_LOGGER = ("reward", "is_first", "is_last")
NO_STREAMS = np.zeros(0, np.int64)
VIDEO_NAMES = {"": "episode", "_eval": "eval/episode"}
NOT_TO_POLICY = ("slot", "stream", "is_eval")
NOT_STORED = ("slot", "is_eval")


class PolicyExtras(NamedTuple):
    """The data of an answered batch that is needed to forward its transitions."""

    outs: Arrays  # of the policy, for replay
    envs: np.ndarray  # the environments' numbers, for the logger
    losses: int  # number of replay losses before the answer


Answer = tuple[Arrays, PolicyExtras]
Acted = tuple[Carry, Arrays, Arrays]  # what a policy returns
T = TypeVar("T")


class ActorRole:
    """A batch-inference server for environments.

    `act` computes actions for the rows that have arrived. Training and evaluation share policy calls, unless the agent
    acts differently in evaluation. `after_act` runs after the reply. It forwards the transitions to replay and the
    logger, and blocks while replay does not accept steps. This back-pressure slows the environments down when the
    learner is behind.

    If replay dies, steps in flight are lost. Steps are never sent twice: all collected steps count for the run, and
    every environment starts a new stream because its old one may have gaps. Every batch contains the run's step.

    Errors of the agent are reported to `on_failure` instead of blaming the environments. It may raise another error for
    them.
    """

    def __init__(
        self,
        agent: Agent,
        args: FleetArgs,
        replay: Client,
        logger: Client,
        context: RoleContext,
        on_failure: Callable[[Exception], object],
    ) -> None:
        self.agent = agent
        self._start_policy = agent.start_policy if isinstance(agent, AsyncPolicy) else None  # the check is slow
        self.args = args
        self.replay = replay
        self.logger = logger
        self.context = context
        protected = protected_envs(args, context.by_hand)
        self.slots = SlotTable(
            args.episode_timeout,
            reserved=max(args.envs, args.eval_envs),
            num_local=num_local_envs(args),
            protected=protected,
        )
        self.steps = int(Snapshots(Path(args.logdir)).manifest().get("step", 0))
        self.waits = Waits()
        self._shown = Counters()  # for the status, read every second
        self._logged = Counters()  # for the metrics, read every log_every seconds
        self._latencies = Latencies()  # of policy calls; written under the lock
        self._should_log = LocalClock(args.log_every)
        self._carries = agent.carry_table() if isinstance(agent, HasDeviceCarries) else CarryTable(agent.init_policy)
        self._worker_metrics = PendingMetrics()
        self.admission = Admission(agent, args, context, self._free)
        self._recorders = {
            suffix: EpisodeRecorder(args.logger_video_every, args.episode_timeout) for suffix in VIDEO_NAMES
        }
        self._sections = SectionTotals()
        self._messages = Messages(logger, context)
        self._losses = 0  # of replay; written under the lock
        self._epoch: Arrays | None = {}  # sent with steps, besides the run's step; None until replay provides it
        self._server: BatchServer | None = None  # set while serving
        self._on_failure = on_failure
        self._finished = False
        self._ending = False
        self._remote_workers = RemoteWorkers(args.env_step_timeout_s)
        self._lock = (
            threading.Lock()
        )  # guards slots, remote workers, carries, _ending: policy threads, joins and the status
        self._envs_left = threading.Condition(self._lock)  # notified when environments were told that the run has ended

    def join(self, data: Arrays) -> Arrays:
        """Assign slots and streams to environments and free their old ones. A worker that ends joins with none."""
        if not len(data["env"]):
            return self.leave(data)
        who = read_identity(data)
        with self._lock:
            if self._ending:
                raise Stopped("the run has ended")
            slots, streams, envs = self.slots.join(data["env"], data["stream"], self.admission.limited)
            if who:
                self._remote_workers.join(who, data["stream"], streams)
        self.admission.joined(data["stream"], streams)
        return {"slot": slots, "stream": streams, "env": envs}

    def leave(self, data: Arrays) -> Arrays:
        """Free the slots of a worker that ends."""
        self.admission.joined(data["stream"], NO_STREAMS)
        self._free(data["stream"])
        return {}

    def add(self, data: Arrays) -> None:
        """Queue an env worker's measurements for the logger. They are forwarded with the next steps."""
        self._worker_metrics.add(self.admission.sender, data["json"])

    def act(self, batch: Arrays, rows: int) -> Answer:
        return self._act(batch, rows, "train")()

    def act_eval(self, batch: Arrays, rows: int) -> Answer:
        return self._act(batch, rows, "eval")()

    def after_act(self, batch: Arrays, result: tuple[Arrays, PolicyExtras], rows: int) -> None:
        known = result[0]["known"][:rows]
        evaluates = batch["is_eval"][:rows]
        if evaluates.any():
            self._count("env_eval", self._forward_transitions(batch, result, known & evaluates, "_eval"))
            known = known & ~evaluates
        if self._finished:
            return  # the budget is used up; later steps are not part of the run
        if self.steps < self.args.steps:  # otherwise the resumed run had already ended
            passed = self._forward_transitions(batch, result, known, "")
            self._count("policy", 1)
            self.steps += passed
            self._count("env", passed)
        if self._should_log():
            self.log()
        self.finish_if_reached()

    def use_replay_epoch(self) -> None:
        """Prepare for a replay that survives the actor: the first steps determine the epoch."""
        self._epoch = None

    def finish_if_reached(self) -> None:
        """End the run if it has used up its budget, even if it was resumed there."""
        if self.steps >= self.args.steps:
            self._finished = True
            self.context.report.finish(f"run.steps={self.args.steps} reached")

    def after_act_eval(self, batch: Arrays, result: tuple[Arrays, PolicyExtras], rows: int) -> None:
        self._count("env_eval", self._forward_transitions(batch, result, result[0]["known"][:rows], "_eval"))
        self._count("policy", 1)

    def end(self, timeout_s: float) -> None:
        """Answer all further requests with `Stopped`, and wait until remote environments have received it.

        The supervisor stops this fleet's own environments, but not the remote ones. Those that are silent for the
        duration of the wait count as gone.
        """
        silent_s = max(LIVE_S, timeout_s)
        with self._envs_left:
            self._ending = True
            self._envs_left.wait_for(lambda: not self.slots.live(silent_s, remote=True), timeout_s)

    def log(self) -> None:
        rates = {f"fps/{name}": rate for name, rate in self._logged.rates().items()}
        waits = self.waits.metrics("actor")
        timers = {f"timer/actor/{name}": value for name, value in self._sections.stats(self._totals()).items()}
        self._messages.call("add", {"json": pack_json({"metrics": {**rates, **waits, **timers}})})

    def serve(self, server: BatchServer) -> None:
        self._server = server
        server.check_request = self.admission
        server.max_waiting_bytes = self.admission.max_waiting + MAX_PENDING_BYTES  # steps and additional data
        self.replay.on_pending = server.notify_pending  # waiting for actions includes waiting for replay
        server.bind("join", self.join, identify=True)
        server.bind("add", self.add)
        rows = self.args.actor_rows
        train, evaluate = partial(self._act, mode="train"), partial(self._act, mode="eval")
        server.bind_batch("act", train, self.after_act, max_rows=rows, post_waits=self._replay_blocked)
        server.bind_batch("act_eval", evaluate, self.after_act_eval, max_rows=rows, post_waits=self._replay_blocked)

    def _free(self, streams: np.ndarray) -> None:
        with self._envs_left:
            self.slots.leave(streams)
            self._remote_workers.leave(streams)
            self._envs_left.notify_all()

    def status(self) -> Mapping[str, Any]:
        with self._lock:
            live = self.slots.live(LIVE_S)
            news = self._remote_workers.look(self.slots)
        for event, detail in news:
            self.context.report.event(event, detail)
        return {
            "step": self.steps,
            "envs": live,
            "rates": {name: round(rate, 1) for name, rate in self._shown.rates().items()},
            **waits_status(self.waits.current()),
            "replay_inflight": self.replay.stats()["inflight"],
            "wait_s": {"replay": self.replay.stats()["wait_s"], "logger": self.logger.stats()["wait_s"]},
            "policy_s": self._latencies.counts(),
            "refused": self.admission.status(),
        }

    def _act(self, batch: Arrays, rows: int, mode: str) -> Callable[[], Answer]:
        """Start the policy. Return a function that waits for the actions and returns the reply and the kept data.

        Environments that joined before a restart of the actor are unknown. The reply says so, and their steps are not
        forwarded.
        """
        with self._lock:
            known = self.slots.known(batch["slot"], batch["stream"])
            if self._ending:
                self.slots.release(batch["slot"][known])
                self._envs_left.notify_all()
                raise Stopped("the run has ended")
            known[rows:] = False
            known[:rows] = self.slots.first_of_each(batch["slot"][:rows], known[:rows])
            slots = np.where(known, batch["slot"], PADDING_SLOT)
            self.slots.mark_seen(slots[known])
            envs, losses = self.slots.envs[slots], self._losses
            carry = self._call_agent(partial(self._carries.take, slots, len(self.slots)))
        begun = time.monotonic()
        fetch = self._policy(carry, batch, mode)
        started_s = time.monotonic() - begun

        def answer() -> Answer:
            begun = time.monotonic()  # excludes the time in which other steps were forwarded
            carry, actions, outs = self._call_agent(fetch)
            took = started_s + time.monotonic() - begun
            with self._lock:
                self._latencies.add(took)
                # Meanwhile, the environment may have rejoined and its slot may belong to another one.
                still = self.slots.known(slots, batch["stream"])
                self._carries.put(np.where(still, slots, PADDING_SLOT), carry)
            return {**actions, "known": known}, PolicyExtras(outs, envs, losses)

        return answer

    def _policy(self, carry: Carry, batch: Arrays, mode: str) -> Callable[[], Acted]:
        obs = {key: value for key, value in batch.items() if key not in NOT_TO_POLICY}
        if self._start_policy:
            return self._call_agent(partial(self._start_policy, carry, obs, mode))
        return partial(self.agent.policy, carry, obs, mode)

    def _replay_blocked(self) -> bool:
        """Return whether forwarding waits for the learner. Policy calls before that would use old parameters."""
        if self.replay.full:
            self.replay.poll()
        return self.replay.full

    def _call_agent(self, call: Callable[[], T]) -> T:
        """Report errors of the agent to the role. Do not blame the environments."""
        try:
            return call()
        except Exception as error:
            self._on_failure(error)
            raise

    def _forward_transitions(
        self, batch: Arrays, result: tuple[Arrays, PolicyExtras], chosen: np.ndarray, suffix: str
    ) -> int:
        """Forward the transitions of some rows to replay and the logger. Return their number."""
        if not chosen.any():
            return 0
        reply, extras = result
        some: Any = slice(len(chosen)) if chosen.all() else np.flatnonzero(chosen)
        logged = {key: batch[key][some] for key in TO_LOGGER}
        logged["env"] = extras.envs[some]
        stored = {key: value[some] for key, value in batch.items() if key not in NOT_STORED}
        episode = self._recorders[suffix].add(logged["env"], stored)
        stored.update({key: value[some] for key, value in reply.items() if key != "known"})
        stored.update({key: np.asarray(value)[some] for key, value in extras.outs.items()})  # from the device, by now
        last = False  # the final snapshot must include these steps
        if not suffix:
            step = self.steps + len(logged["env"])
            last = step >= self.args.steps
            stored[RUN_STEP] = logged[RUN_STEP] = np.array(step, np.int64)
        if not self._store(f"add_batch{suffix}", stored, extras.losses, last):
            return 0
        with self.waits(Wait.LOGGER_TO_ACCEPT_STEPS):
            self._messages.call(f"tran{suffix}", logged, wait=last)
            if episode:
                named = {f"{VIDEO_NAMES[suffix]}/{key}": frames for key, frames in episode.items()}
                self._messages.call("video", named)
            while (metrics := self._worker_metrics.take()) is not None:
                self._messages.call("add", {"json": metrics})
        return len(logged["env"])

    def _store(self, method: str, stored: Arrays, losses: int, wait: bool) -> bool:
        """Return whether the steps were sent. They are not if earlier steps of their streams were lost."""
        if losses != self._losses:
            return False
        try:
            with self.waits(Wait.REPLAY_TO_ACCEPT_STEPS):
                if self._epoch is None:
                    self._step_of_replay()
                answer = self.replay.call(method, {**stored, **(self._epoch or {})})
                if wait:
                    answer.result()
        except Disconnected as error:
            with self._lock:
                self._losses += 1
                self.slots.forget()
            with self.waits(Wait.REPLAY_TO_COME_BACK):
                lost = max(0, self.steps - self._step_of_replay())
            self.context.report.event(Event.STEPS_LOST, {"steps": lost, "reason": str(error)})
            return False
        return True

    def _step_of_replay(self) -> int:
        """Wait for replay and return the run's step of its newest step. Adopt its epoch."""
        while True:
            try:
                sizes = self.replay.call("sizes", {RUN_STEP: np.array(self.steps, np.int64)}).result()
                self._epoch = {key: sizes[key] for key in (EPOCH,) if key in sizes}
                return int(sizes["step"])
            except Disconnected:
                continue  # it died again; the wait for the next one has a deadline

    def _totals(self) -> dict[str, tuple[float, float]]:
        """Return how the server spent its time: answering, forwarding and waiting for observations."""
        if self._server is None:
            return {}
        stats = self._server.stats()
        parts = {"policy": "handler_s", "pass_on": "post_s", "idle": "wait_s"}
        return {name: (stats["batches"], stats[key]) for name, key in parts.items()}

    def _count(self, name: str, amount: int) -> None:
        self._shown.add(name, amount)
        self._logged.add(name, amount)
