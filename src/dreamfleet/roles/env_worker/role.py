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
from dreamfleet.roles.env_worker.group import StepGroup, asking, expect_same_spaces, regroup
from dreamfleet.roles.env_worker.instance import EnvMaker, EnvRestarter, MakeEnv, Seat
from dreamfleet.roles.env_worker.measurements import EpisodeLogs, StepClock, StepTimes
from dreamfleet.roles.remote_workers import Membership, this_worker
from dreamfleet.roles.slots import own_envs
from dreamfleet.transport.client import Client, Future
from dreamfleet.transport.codec import pack_json
from dreamfleet.transport.security import OWNER, WORKER

TELL_FIRST_S, TELL_EVERY_S = 0.1, 1.0  # the interval doubles from the first to the second: short runs have figures too
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
    is made anew and joins again by itself.

    A worker to which the actor says that the run has ended waits for its supervisor to stop it; when that does not come
    in time, the run goes on and the worker joins again.
    """

    def __init__(self, seats: Sequence[Seat], indices: Sequence[int], maker: EnvMaker, mode: str, args: FleetArgs):
        expect_same_spaces(seats)
        self.seats = seats
        self.mode = mode
        self.args = args
        self.joins = 0
        self.waits = Waits()
        self.clock = StepClock(args.env_step_timeout_s)
        self.times = StepTimes(seats)
        self.logs = EpisodeLogs()
        self._usage = ProcessUsage()
        self._asks = asking(mode, args.eval_apart)
        self.groups = self._make_groups(indices)
        self._maker = maker
        self._id = uuid.uuid4().hex  # one that joins again may get other numbers for its environments
        self._guest = any(index < 0 or index >= own_envs(args) for index in indices)
        self._alone = any(index < 0 for index in indices)  # the launcher has this worker only, and a user who looks
        self._about: Arrays = {}  # who a guest is, for the actor
        self._left = False  # the actor was asked to free the slots
        self._awaits_since: float | None = None  # when it began to wait for actions; read by the status thread
        self._awaited_s = 0.0
        self._latencies = Latencies()  # how long it stood still for the actions to each message
        self._telling: Future | None = None  # the last message with figures
        self._tell_interval_s = TELL_FIRST_S
        self._tell_at = time.monotonic() + TELL_FIRST_S

    @property
    def steps(self) -> int:
        return sum(group.steps for group in self.groups)

    def run(self, context: RoleContext) -> None:
        with contextlib.ExitStack() as stack:
            for seat in self.seats:
                stack.callback(seat.close, context)
            # Beside the observations there may be figures, and an environment that joins again.
            inflight = sum(group.messages for group in self.groups) + 2
            # The fleet's own workers run where its keys are, and the actor keeps room for who has the owner's.
            key = WORKER if self._guest or context.by_hand else OWNER
            client = connect("actor", context.name, self.args, context.stop, max_inflight=inflight, key=key)
            stack.callback(client.close)
            if self._guest:
                stack.callback(self._leave, context)
            with StatusReports(context, lambda: self.status(client, context)):
                self.serve(client, context)

    def serve(self, client: Client, context: RoleContext) -> None:
        restarts = EnvRestarter(self._maker, self.args, context, self.clock, lambda data: self._join(client, data))
        membership = Membership(context, self._alone)
        if self._guest:
            self._about = this_worker(self._id, context, self.mode).message()
        while True:
            try:
                self.join(client)
                context.report.state("ready")
                if self._guest:
                    membership.joined(client.address, sum(group.rows for group in self.groups))
                self.step_until_disconnected(client, restarts)
            except (Disconnected, UnknownStream) as error:
                context.report.event(Event.DISCONNECT, {"reason": str(error)})
                if self._guest:
                    membership.lost(str(error))
            except NotNow as error:
                context.report.event(Event.DISCONNECT, {"reason": str(error)})
                if self._guest:
                    membership.lost(str(error))
                with self.waits(Wait.ACTOR_TO_HAVE_ROOM):
                    context.stop.wait(JOIN_AGAIN_S)
                if context.stop.is_set():
                    return
            except Stopped as error:
                self.clock.running = None  # where it was asked between two environments
                if self._guest and not context.stop.is_set():
                    self._leave_by(client)
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
        """Free the slots of a guest that ends before the run: the actor would wait for its next message at the end."""
        if not self._left:
            with connect("actor", f"{context.name}-leave", self.args, None, key=WORKER) as client:
                self._leave_by(client)

    def _leave_by(self, client: Client) -> None:
        self._left = True
        with contextlib.suppress(DreamfleetError):
            client.wait_connected(LEAVE_S)
            streams = np.concatenate([group.introduction()["stream"] for group in self.groups])
            client.call("join", {"env": np.zeros(0, np.int32), "stream": streams}).result(LEAVE_S)

    def join(self, client: Client) -> None:
        self.joins += 1
        for group in self.groups:
            reply = self._join(client, group.introduction())
            group.begin(reply["slot"], reply["stream"], reply["env"])

    def step_until_disconnected(self, client: Client, restarts: EnvRestarter | None = None) -> None:
        turns = [Turn(group) for group in self.groups]
        try:
            while True:
                for turn in turns:
                    replies = turn.replies or [self._await_actions(future) for future in turn.futures]
                    turn.replies, turn.futures = [], []
                    for message in turn.group.advance(replies, restarts):
                        turn.futures.append(client.send(message))
                if time.monotonic() >= self._tell_at:
                    self._tell(client)
                    turns = self._regroup(turns)
        finally:
            self._awaits_since = None
            give_up([future for turn in turns for future in turn.futures])
            give_up([self._telling] if self._telling else [])
            self._telling = None

    def _regroup(self, turns: list[Turn]) -> list[Turn]:
        """One group instead of two or more while steps are so short that they need not overlap with waiting."""
        groups = [group for group in self.groups if isinstance(group, StepGroup)]
        rows = sum(group.rows for group in groups)
        if len(groups) < len(self.groups) or rows > self.args.actor_rows:
            return turns
        if len(groups) > 1 and self.times.busy < MERGE_BELOW:
            size = rows
        elif len(groups) == 1 and rows > 1 and self.times.busy > SPLIT_ABOVE:
            size = (rows + 1) // 2
        else:
            return turns
        replies = [self._await_actions(future) for turn in turns for future in turn.futures]
        actions = {key: np.concatenate([reply[key] for reply in replies]) for key in replies[0]}
        regrouped = regroup(groups, size, self._asks)
        self.groups = [*regrouped]
        parts = [slice(number * size, (number + 1) * size) for number in range(len(regrouped))]
        shares = [{key: values[part] for key, values in actions.items()} for part in parts]
        return [Turn(group, replies=[share]) for group, share in zip(regrouped, shares, strict=True)]

    def _await_actions(self, future: Future) -> Arrays:
        # By hand, since it happens for every message: a fourth of what `Waits` would take.
        self._awaits_since = start = time.monotonic()
        actions = future.result()
        waited = time.monotonic() - start
        self._awaits_since = None
        self._awaited_s += waited
        self._latencies.add(waited)
        if UNKNOWN in actions.pop("known").tobytes():
            raise UnknownStream("the actor does not know these environments")
        return actions

    def _join(self, client: Client, introduction: Arrays) -> Arrays:
        with self.waits(Wait.ACTOR_TO_ACCEPT_ENVIRONMENTS):
            return client.call("join", {**introduction, **self._about}).result()

    def _tell(self, client: Client) -> None:
        """Sends the figures for the logger, unless the last ones are still on their way: steps never wait for them."""
        if self._telling is not None:
            if not self._telling.done():
                return
            self._telling.result()
        self._tell_interval_s = min(2 * self._tell_interval_s, TELL_EVERY_S)
        self._tell_at = time.monotonic() + self._tell_interval_s
        self._telling = client.call("add", {"json": pack_json(self.figures())})

    def figures(self) -> dict[str, Any]:
        """What there is to tell since the last time; restarts are counted from the start."""
        restarts = sum(seat.restarts for seat in self.seats)
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
            "restarts": sum(seat.restarts for seat in self.seats),
            "step_ms": self.times.shown,
            "step_s": sum(seat.step_ns for seat in self.seats) / 1e9,
            "actions_wait_s": self._actions_wait_s(),
            "actions_s": self._latencies.counts(),
            **self._waits_status(),
            "client": client.stats(),
        }

    def _actions_wait_s(self) -> float:
        """Since the start, a wait in progress included."""
        since = self._awaits_since
        return self._awaited_s + (0.0 if since is None else time.monotonic() - since)

    def _waits_status(self) -> dict[str, Any]:
        since = self._awaits_since
        actions = {} if since is None else {Wait.ACTIONS: round(time.monotonic() - since, 1)}
        return waits_status({**actions, **self.waits.current()}, self.clock.waiting())

    def _make_groups(self, indices: Sequence[int]) -> list[Group]:
        groups: list[Group] = []
        shared = self._asks, self.clock, self.logs
        start = 0
        for together, some in groupby(self.seats, lambda seat: isinstance(seat.env, EnvBatch)):
            seats = list(some)
            if together:
                for seat in seats:
                    rows = indices[start : start + seat.rows]
                    groups.append(BatchGroup(seat, rows, *shared, self.args.actor_rows))
                    start += seat.rows
            else:
                size = min((len(seats) + 1) // 2, self.args.actor_rows)
                groups += [StepGroup(seats[first : first + size], *shared) for first in range(0, len(seats), size)]
                start += len(seats)
        return groups


@dataclass
class Turn:
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
    seats: list[Seat] = []
    try:
        made = 0
        while made < len(indices):
            current_context().stop.check()  # each may take minutes
            seats.append(maker.seat(indices[made], len(indices) - made))
            made += seats[-1].rows
        return EnvWorker(seats, indices, maker, mode, args)
    except BaseException:
        for seat in seats:
            seat.close(current_context())
        raise
