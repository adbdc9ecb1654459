"""What every role needs around its handlers: its connections, its keys and its report to the supervisor."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from dreamfleet.checkpoint.snapshot import Retention, Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import Reporter, RoleContext
from dreamfleet.core.errors import CheckpointError, DeadlineExceeded, Disconnected, Stopped, TransportError
from dreamfleet.core.events import Event
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.stop import Stop
from dreamfleet.metrics.usage import ProcessUsage
from dreamfleet.transport.address import choose_address, is_local, split_addresses
from dreamfleet.transport.client import Client
from dreamfleet.transport.security import OWNER, ClientSecurity, ServerSecurity, load_client, load_server

STATUS_EVERY_S = 1.0
END_S = 5.0  # for a role that is asked to end to hand on its last figures
RUN_STEP = "run_step"  # the key, beside steps that the actor sends, of the run's step with the last of them
EPOCH = "run_epoch"  # the key, beside steps that the actor sends, of what replay told it to name: see `ReplayRole`


def connect(
    server: str,
    name: str,
    args: FleetArgs,
    stop: Stop | None,
    max_inflight: int = 8,
    tells_losses: bool = False,
    key: str = OWNER,
) -> Client:
    """A client of the actor, replay, logger or clock, at the first of its addresses that this machine can reach.

    `key` names the pair that the role shows there; it may call what `security.ADMITTED` says.
    """
    return Client(
        server_addresses(server, args),
        name=name,
        security=client_security(server, args, key),
        max_inflight=max_inflight,
        timeout_s=args.wait_timeout_s,
        stop=stop,
        tells_losses=tells_losses,
    )


def server_addresses(server: str, args: FleetArgs) -> str:
    return str(getattr(args, f"{server}_addr"))


def client_security(server: str, args: FleetArgs, key: str = OWNER) -> ClientSecurity | None:
    if choose_address(server_addresses(server, args)).is_local:
        return None
    return load_client(Path(args.logdir) / "keys", server, key, args.public_keys)


def server_security(server: str, args: FleetArgs) -> ServerSecurity | None:
    if all(is_local(address) for address in split_addresses(server_addresses(server, args))):
        return None
    return load_server(Path(args.logdir) / "keys", server, args.public_keys)


def write_interval_s(log_every: float) -> float | None:
    """For a role without a loop of its own: zero means never, "always" as often as a reader could want."""
    return None if log_every == 0 else max(log_every, 1.0)


@contextmanager
def until_stopped(stop: Stop) -> Iterator[None]:
    """Ends quietly when this role is stopped. `Stopped` from a role that ended while this one goes on is a loss."""
    try:
        yield
    except Stopped as error:
        if not stop.is_set():
            raise Disconnected(f"a role that this one needs has ended: {error}") from error


class Messages:
    """Sends to the logger what a run can do without: metrics, episodes, videos.

    What was on its way when the logger died is lost, counted and told; what comes after it waits for the next one.
    """

    def __init__(self, client: Client, context: RoleContext) -> None:
        self._client = client
        self._context = context
        self._lost = 0

    def call(self, method: str, data: Arrays, wait: bool = False) -> None:
        while True:
            try:
                answer = self._client.call(method, data)
                if wait:
                    answer.result()
                return
            except Disconnected as error:
                lost = int(self._client.stats()["errors"])
                self._context.report.event(Event.MESSAGES_LOST, {"messages": lost - self._lost, "reason": str(error)})
                self._lost = lost


def snapshot_request(step: int, token: str) -> Arrays:
    """What the learner sends to roles that add to the snapshot which it has begun."""
    return {"snapshot": np.array(step, np.int64), "token": np.frombuffer(token.encode(), np.uint8)}


def requested_snapshot(data: Arrays) -> tuple[int, str]:
    """The step and the token of a request."""
    if not {"snapshot", "token"} <= data.keys() or data["snapshot"].shape or (step := int(data["snapshot"])) < 0:
        raise CheckpointError("a request for a snapshot needs its step and its token")
    return step, data["token"].tobytes().decode(errors="replace")


def commit_part(snapshots: Snapshots, role: str, data: Arrays) -> None:
    """Follows the learner's commit in a role that may have a run folder of its own, on another machine."""
    numbers = {"step": int(data["step"]), "updates": int(data["updates"])}
    snapshots.commit_own(*requested_snapshot(data), role, numbers)


def retention(args: FleetArgs) -> Retention:
    return Retention(args.keep, args.keep_every, args.keep_best)


class RunEnd:
    """The end of the run for a role that this fleet's supervisor does not stop: a client calls `end`.

    The answer to `end` comes when the role has nothing more to send, so that the logger can be asked after that.
    """

    def __init__(self, context: RoleContext) -> None:
        self._context = context
        self._asked = threading.Event()
        self._over = threading.Event()

    def end(self, data: Arrays) -> None:
        self._asked.set()
        self._context.report.finish("the run has ended")
        self._over.wait(END_S)

    def await_agent(self, served: bool, timeout_s: float) -> None:
        """In a role run by hand whose own switch was set, wait for the last save of an agent that it has `served`."""
        if self._context.by_hand and served:
            self._asked.wait(timeout_s)

    def over(self) -> None:
        self._over.set()


def end_roles(*clients: Client, connect_s: float = END_S) -> None:
    """Ask servers to end, one after the other; those that are gone are passed over."""
    for client in clients:
        with contextlib.suppress(TransportError, DeadlineExceeded):
            client.wait_connected(connect_s)
            client.call("end").result(END_S + 1.0)  # longer than the server itself waits


class StatusReports:
    """Sends a role's status to the supervisor about once a second, from a thread of its own."""

    def __init__(self, context: RoleContext, collect: Callable[[], Mapping[str, Any]]) -> None:
        self._context = context
        self._collect = collect
        self._usage = ProcessUsage()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"{context.name}-status", daemon=True)

    def __enter__(self) -> StatusReports:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=2 * STATUS_EVERY_S)
        with contextlib.suppress(OSError):
            self._send()

    def _loop(self) -> None:
        while not self._ended.wait(STATUS_EVERY_S):
            try:
                self._send()
            except OSError as error:  # the next one will do, as after a moment in which no file could be opened
                self._context.report.event(Event.STATUS_FAILED, {"reason": str(error)})

    def _send(self) -> None:
        # When it was collected: totals of two statuses are compared over the time between them.
        collected = {**self._collect(), "clock_s": time.monotonic(), "usage": self._usage.stats()}
        self._context.report.status(collected)


class Parts:
    """Lets several parts of one role report as if each were alone: the role is ready once all of them are."""

    def __init__(self, context: RoleContext, names: tuple[str, ...]) -> None:
        self._context = context
        self._lock = threading.Lock()  # guards the two tables
        self._waiting = set(names)
        self._status: dict[str, Mapping[str, Any]] = {}

    def context(self, name: str) -> RoleContext:
        own = self._context
        return replace(own, name=f"{own.name}-{name}", report=_PartReporter(self, name))

    def report(self) -> Reporter:
        return self._context.report

    def state(self, name: str, state: str) -> None:
        with self._lock:
            self._waiting.discard(name)
            complete = not self._waiting
        if complete:
            self._context.report.state(state)

    def status(self, name: str, status: Mapping[str, Any]) -> None:
        with self._lock:
            self._status[name] = status
            merged = dict(self._status)
        self._context.report.status(merged)


class _PartReporter:
    def __init__(self, parts: Parts, name: str) -> None:
        self._parts = parts
        self._name = name

    def state(self, state: str) -> None:
        self._parts.state(self._name, state)

    def status(self, status: Mapping[str, Any]) -> None:
        self._parts.status(self._name, status)

    def event(self, event: Event, detail: Mapping[str, Any]) -> None:
        self._parts.report().event(event, {"part": self._name, **detail})

    def finish(self, reason: str) -> None:
        self._parts.report().finish(reason)
