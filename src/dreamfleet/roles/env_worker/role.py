"""The env worker role: steps several environments in one process and asks the actor for their actions."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import RoleContext, current_context
from dreamfleet.core.errors import Disconnected, DreamfleetError, NotNow, Stopped, UnknownStream
from dreamfleet.core.events import Event
from dreamfleet.core.interfaces import Arrays, EnvBatch
from dreamfleet.core.latency import Latencies
from dreamfleet.core.text.words import waits_status
from dreamfleet.core.waits import Wait, Waits
from dreamfleet.metrics.usage import ProcessUsage
from dreamfleet.roles.connect import StatusReports, connect
from dreamfleet.roles.env_worker.batch import BatchGroup
from dreamfleet.roles.env_worker.group import StepGroup, act_call_of, expect_same_spaces, regroup
from dreamfleet.roles.env_worker.instance import EnvInstance, EnvMaker, EnvRestarter, MakeEnv
from dreamfleet.roles.env_worker.measurements import EpisodeLogs, StepClock, StepTimes
from dreamfleet.roles.remote_workers import Membership, this_worker
from dreamfleet.roles.slots import num_local_envs
from dreamfleet.transport.client import Client, Future
from dreamfleet.transport.codec import pack_json
from dreamfleet.transport.security import OWNER, WORKER

REPORT_FIRST_S, REPORT_EVERY_S = (
    0.1,
    1.0,
)  # the interval doubles from the first to the second: short runs have metrics too
JOIN_AGAIN_S = 2.0  # after the actor had no room
LEAVE_S = 1.0  # for the actor's answer to a worker that ends
UNKNOWN = b"\0"  # a false among the bytes of `known`
MERGE_BELOW, SPLIT_ABOVE = 0.15, 0.4  # the part of the time that passes inside of environments

Group = StepGroup | BatchGroup


class EnvWorker:
    """Half of the environments step while the other half wait for their actions, or more groups if halves exceed
    `actor_batch`. Where stepping takes next to no time there is nothing to win by that, and one message for all of them
    costs less than two. An `EnvBatch` is a group of its own.

    The worker joins the actor with its environments and gets a slot and a stream for each. When the connection is lost,
    or the actor no longer knows the slots because it was restarted, the worker joins again and every environment starts
    a new episode in a new stream: a step whose fate is unknown is never sent twice. An environment that raises an error
    is recreated and joins again by itself.

    A worker to which the actor says that the run has ended waits for its supervisor to stop it; when that does not come
    in time, the run goes on and the worker joins again.
    """

    def __init__(
        self, instances: Sequence[EnvInstance], indices: Sequence[int], maker: EnvMaker, mode: str, args: FleetArgs
    ):
        expect_same_spaces(instances)
        self.instances = instances
        self.mode = mode
        self.args = args
        self.joins = 0
        self.waits = Waits()
        self.clock = StepClock(args.env_step_timeout_s)
        self.times = StepTimes(instances)
        self.logs = EpisodeLogs()
        self._usage = ProcessUsage()
        self._act_call = act_call_of(mode, args.eval_apart)
        self.groups = self._make_groups(indices)
        self._maker = maker
        self._id = uuid.uuid4().hex  # one that joins again may get other numbers for its environments
        self._remote = any(index < 0 or index >= num_local_envs(args) for index in indices)
        self._alone = any(index < 0 for index in indices)  # the launcher has this worker only, and a user who looks
        self._about: Arrays = {}  # who a remote worker is, for the actor
        self._left = False  # the actor was asked to free the slots
        self._waiting_since: float | None = None  # when it began to wait for actions; read by the status thread
        self._awaited_s = 0.0
        self._latencies = Latencies()  # how long it stood still for the actions to each message
        self._metrics_reply: Future | None = None  # the last message with metrics
        self._report_interval_s = REPORT_FIRST_S
        self._report_at = time.monotonic() + REPORT_FIRST_S

    @property
    def steps(self) -> int:
        return sum(group.steps for group in self.groups)

    def run(self, context: RoleContext) -> None:
        with contextlib.ExitStack() as stack:
            for instance in self.instances:
                stack.callback(instance.close, context)
            # Beside the observations there may be metrics, and an environment that joins again.
            inflight = sum(group.messages for group in self.groups) + 2
            # The fleet's own workers run where its keys are, and the actor keeps room for who has the owner's.
            key = WORKER if self._remote or context.by_hand else OWNER
            client = connect("actor", context.name, self.args, context.stop, max_inflight=inflight, key=key)
            stack.callback(client.close)
            if self._remote:
                stack.callback(self._leave, context)
            with StatusReports(context, lambda: self.status(client, context)):
                self.serve(client, context)

    def serve(self, client: Client, context: RoleContext) -> None:
        restarts = EnvRestarter(self._maker, self.args, context, self.clock, lambda data: self._join(client, data))
        membership = Membership(context, self._alone)
        if self._remote:
            self._about = this_worker(self._id, context, self.mode).message()
        while True:
            try:
                self.join(client)
                context.report.state("ready")
                if self._remote:
                    membership.joined(client.address, sum(group.rows for group in self.groups))
                self.step_until_disconnected(client, restarts)
            except (Disconnected, UnknownStream) as error:
                context.report.event(Event.DISCONNECT, {"reason": str(error)})
                if self._remote:
                    membership.lost(str(error))
            except NotNow as error:
                context.report.event(Event.DISCONNECT, {"reason": str(error)})
                if self._remote:
                    membership.lost(str(error))
                with self.waits(Wait.ACTOR_TO_HAVE_ROOM):
                    context.stop.wait(JOIN_AGAIN_S)
                if context.stop.is_set():
                    return
            except Stopped as error:
                self.clock.running = None  # where it was asked between two environments
                if self._remote and not context.stop.is_set():
                    self._send_leave(client)
                    membership.ended()
                    context.report.finish(f"the actor ended: {error}")
                    return
                with self.waits(Wait.SUPERVISOR_TO_STOP):  # which knows whether the run ended well
                    if context.stop.wait(self.args.stop_timeout_s):
                        return
                context.report.event(
                    Event.DISCONNECT, {"reason": f"{error}, but the supervisor did not stop this role"}
                )

    def _leave(self, context: RoleContext) -> None:
        """Free the slots of a remote worker that ends before the run, or the actor would wait for it at its own end."""
        if not self._left:
            with connect("actor", f"{context.name}-leave", self.args, None, key=WORKER) as client:
                self._send_leave(client)

    def _send_leave(self, client: Client) -> None:
        self._left = True
        with contextlib.suppress(DreamfleetError):
            client.wait_connected(LEAVE_S)
            streams = np.concatenate([group.join_request()["stream"] for group in self.groups])
            client.call("join", {"env": np.zeros(0, np.int32), "stream": streams}).result(LEAVE_S)

    def join(self, client: Client) -> None:
        self.joins += 1
        for group in self.groups:
            reply = self._join(client, group.join_request())
            group.begin(reply["slot"], reply["stream"], reply["env"])

    def step_until_disconnected(self, client: Client, restarts: EnvRestarter | None = None) -> None:
        pending_groups = [PendingGroup(group) for group in self.groups]
        try:
            while True:
                for pending in pending_groups:
                    replies = pending.replies or [self._await_actions(future) for future in pending.futures]
                    pending.replies, pending.futures = [], []
                    for message in pending.group.advance(replies, restarts):
                        pending.futures.append(client.send(message))
                if time.monotonic() >= self._report_at:
                    self._send_metrics(client)
                    pending_groups = self._regroup(pending_groups)
        finally:
            self._waiting_since = None
            give_up([future for pending in pending_groups for future in pending.futures])
            give_up([self._metrics_reply] if self._metrics_reply else [])
            self._metrics_reply = None

    def _regroup(self, pending_groups: list[PendingGroup]) -> list[PendingGroup]:
        """One group instead of two or more while steps are so short that they need not overlap with waiting."""
        groups = [group for group in self.groups if isinstance(group, StepGroup)]
        rows = sum(group.rows for group in groups)
        if len(groups) < len(self.groups) or rows > self.args.actor_rows:
            return pending_groups
        if len(groups) > 1 and self.times.busy < MERGE_BELOW:
            size = rows
        elif len(groups) == 1 and rows > 1 and self.times.busy > SPLIT_ABOVE:
            size = (rows + 1) // 2
        else:
            return pending_groups
        replies = [self._await_actions(future) for pending in pending_groups for future in pending.futures]
        actions = {key: np.concatenate([reply[key] for reply in replies]) for key in replies[0]}
        regrouped = regroup(groups, size, self._act_call)
        self.groups = [*regrouped]
        parts = [slice(number * size, (number + 1) * size) for number in range(len(regrouped))]
        shares = [{key: values[part] for key, values in actions.items()} for part in parts]
        return [PendingGroup(group, replies=[share]) for group, share in zip(regrouped, shares, strict=True)]

    def _await_actions(self, future: Future) -> Arrays:
        # By hand, since it happens for every message: a fourth of what `Waits` would take.
        self._waiting_since = start = time.monotonic()
        actions = future.result()
        waited = time.monotonic() - start
        self._waiting_since = None
        self._awaited_s += waited
        self._latencies.add(waited)
        if UNKNOWN in actions.pop("known").tobytes():
            raise UnknownStream("the actor does not know these environments")
        return actions

    def _join(self, client: Client, join_request: Arrays) -> Arrays:
        with self.waits(Wait.ACTOR_TO_ACCEPT_ENVIRONMENTS):
            return client.call("join", {**join_request, **self._about}).result()

    def _send_metrics(self, client: Client) -> None:
        """Send metrics for the logger, unless the last ones are still on their way: steps never wait for them."""
        if self._metrics_reply is not None:
            if not self._metrics_reply.done():
                return
            self._metrics_reply.result()
        self._report_interval_s = min(2 * self._report_interval_s, REPORT_EVERY_S)
        self._report_at = time.monotonic() + self._report_interval_s
        self._metrics_reply = client.call("add", {"json": pack_json(self.metrics())})

    def metrics(self) -> dict[str, Any]:
        """Return the metrics since the last call; restarts are counted from the start."""
        restarts = sum(instance.restarts for instance in self.instances)
        worker = {"worker": self._id, "mode": self.mode, "restarts": restarts}
        return {**worker, **self.times.take(), "logs": self.logs.take(), "usage": self._usage.stats()}

    def status(self, client: Client, context: RoleContext) -> Mapping[str, Any]:
        stall = self.clock.stall()
        if stall:
            context.report.event(Event.STALL, stall)
        return {
            "mode": self.mode,
            "envs": sum(group.rows for group in self.groups),
            "steps": self.steps,
            "joins": self.joins,
            "restarts": sum(instance.restarts for instance in self.instances),
            "step_ms": self.times.shown,
            "step_s": sum(instance.step_ns for instance in self.instances) / 1e9,
            "actions_wait_s": self._actions_wait_s(),
            "actions_s": self._latencies.counts(),
            **self._waits_status(),
            "client": client.stats(),
        }

    def _actions_wait_s(self) -> float:
        """Since the start, a wait in progress included."""
        since = self._waiting_since
        return self._awaited_s + (0.0 if since is None else time.monotonic() - since)

    def _waits_status(self) -> dict[str, Any]:
        since = self._waiting_since
        actions = {} if since is None else {Wait.ACTIONS: round(time.monotonic() - since, 1)}
        return waits_status({**actions, **self.waits.current()}, self.clock.waiting())

    def _make_groups(self, indices: Sequence[int]) -> list[Group]:
        groups: list[Group] = []
        shared = self._act_call, self.clock, self.logs
        start = 0
        for together, some in groupby(self.instances, lambda instance: isinstance(instance.env, EnvBatch)):
            instances = list(some)
            if together:
                for instance in instances:
                    rows = indices[start : start + instance.rows]
                    groups.append(BatchGroup(instance, rows, *shared, self.args.actor_rows))
                    start += instance.rows
            else:
                size = min((len(instances) + 1) // 2, self.args.actor_rows)
                groups += [
                    StepGroup(instances[first : first + size], *shared) for first in range(0, len(instances), size)
                ]
                start += len(instances)
        return groups


@dataclass
class PendingGroup:
    """A group and the answers to its messages, awaited or at hand."""

    group: Group
    futures: list[Future] = field(default_factory=list)
    replies: list[Arrays] = field(default_factory=list)


def give_up(pending: Sequence[Future]) -> None:
    """Nobody wants these answers any more. Their errors are taken now: the next call would raise them once more."""
    for future in pending:
        with contextlib.suppress(DreamfleetError):
            future.result(timeout_s=0.0)


def make_worker(make_env: MakeEnv, indices: Sequence[int], mode: str, args: FleetArgs) -> EnvWorker:
    """Makes the environments. `make_env(index)` returns one, or an `EnvBatch` that stands for the next ones too; if it
    takes them, it is also told by `room` how many there may be, by `restart` how often this worker has made this one
    before, and by `life` a number that differs from that of workers before it.
    """
    maker = EnvMaker(make_env, mode, args.life)
    instances: list[EnvInstance] = []
    try:
        made = 0
        while made < len(indices):
            current_context().stop.check()  # each may take minutes
            instances.append(maker.make(indices[made], len(indices) - made))
            made += instances[-1].rows
        return EnvWorker(instances, indices, maker, mode, args)
    except BaseException:
        for instance in instances:
            instance.close(current_context())
        raise
