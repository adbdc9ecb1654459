"""Env workers from elsewhere: what they say of themselves, and how actor and worker notice that one is lost."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import psutil

from dreamfleet.core.context import TERMINAL_TEXT, RoleContext
from dreamfleet.core.errors import ProtocolError
from dreamfleet.core.events import Event
from dreamfleet.core.interfaces import Arrays
from dreamfleet.roles.event_limit import EventRateLimiter, Happening
from dreamfleet.roles.slots import MAX_SLOTS, SlotTable
from dreamfleet.transport.codec import pack_json, unpack_json

ABOUT = "about"  # the key, beside the environments that a worker joins with, of who it is
MAX_BYTES = 2048  # of all of it
MAX_CHARS = 100  # of each part of it
MAX_REMOTE_WORKERS = 1000  # further ones join, and are not watched
REPLACED_S = 1.0  # of silence after which a worker is taken to be gone if another one fills its place


class WorkerIdentity(NamedTuple):
    """A worker: its own name, its machine, and the place it fills there, in which its launcher starts it again.

    No other worker may have the same place: one that is silent for a second while the other joins is taken for lost.
    """

    worker: str
    host: str
    place: str

    def message(self) -> Arrays:
        return {ABOUT: pack_json(self._asdict())}


def this_worker(worker: str, context: RoleContext, mode: str) -> WorkerIdentity:
    """The worker of this process. One that no launcher starts again has a place of its own."""
    host = socket.gethostname()
    try:
        started = psutil.Process(os.getppid()).create_time()  # numbers of processes are used again, and in containers
    except psutil.Error:
        started = None
    if context.by_hand or started is None:
        return WorkerIdentity(worker, host, worker)
    return WorkerIdentity(worker, host, f"{os.getppid()}-{started}-{mode}-{context.name}-{host}")


def read_identity(message: Arrays) -> WorkerIdentity | None:
    """None for a worker of the fleet itself."""
    if ABOUT not in message:
        return None
    if message[ABOUT].size > MAX_BYTES:
        raise ProtocolError(f"a worker says who it is in at most {MAX_BYTES} bytes")
    try:
        said = unpack_json(message[ABOUT])
        return WorkerIdentity(
            *("".join(filter(str.isprintable, str(said[key])))[:MAX_CHARS] for key in WorkerIdentity._fields)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a worker says who it is as JSON with {', '.join(WorkerIdentity._fields)}") from error


@dataclass
class RemoteWorker:
    """A worker from elsewhere and the streams of its environments."""

    identity: WorkerIdentity
    seen: float
    joined: float = 0.0  # the last time
    streams: set[int] = field(default_factory=set)
    envs: int = 0  # when it was last complete
    last_event: Event | None = None  # the last event


class RemoteWorkers:
    """The actor's list of workers from elsewhere. Guarded by the lock of the table of slots.

    One is lost when it was silent for `silent_s`, or when another one has joined in its place since it was last heard
    of. It may be heard of again.
    """

    def __init__(self, silent_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._silent_s = silent_s
        self._now = now
        self._workers: dict[str, RemoteWorker] = {}
        self._limiter = EventRateLimiter(now)

    def join(self, identity: WorkerIdentity, old_streams: np.ndarray, streams: np.ndarray) -> None:
        if identity.worker not in self._workers and len(self._workers) >= MAX_REMOTE_WORKERS:
            return
        worker = self._workers.setdefault(identity.worker, RemoteWorker(identity, self._now()))
        worker.streams = (worker.streams - set(old_streams.tolist())) | set(streams.tolist())
        if len(worker.streams) > MAX_SLOTS:
            worker.streams = set(streams.tolist())
        worker.seen = worker.joined = self._now()

    def leave(self, streams: np.ndarray) -> None:
        for worker in self._workers.values():
            worker.streams -= set(streams.tolist())

    def look(self, slots: SlotTable) -> list[Happening]:
        """What has happened since the last look: events and their details, not more than a few in a minute."""
        found = self._limiter.left_out()
        seen = dict(zip(slots.streams.tolist(), slots.seen.tolist(), strict=True)) if self._workers else {}
        newest: dict[str, float] = {}  # by place, when the last of its workers joined
        for worker in self._workers.values():
            worker.seen = max(worker.seen, *(seen.get(stream, 0.0) for stream in worker.streams), 0.0)
            # Streams that it did not give back when it joined again. Where all are unknown it will give them back.
            worker.streams = worker.streams & seen.keys() or worker.streams
            newest[worker.identity.place] = max(worker.joined, newest.get(worker.identity.place, 0.0))
        for worker in list(self._workers.values()):
            state = self._state(worker, newest[worker.identity.place])
            worker.envs = len(worker.streams) or worker.envs
            if state != worker.last_event:
                worker.last_event = state
                found += self._limiter.limit(state, _detail(worker))
            if state == Event.WORKER_LEFT or (state == Event.WORKER_LOST and worker.streams.isdisjoint(seen)):
                del self._workers[worker.identity.worker]
        return found

    def _state(self, worker: RemoteWorker, newest: float) -> Event:
        if not worker.streams:
            return Event.WORKER_LEFT
        silent_s = self._now() - worker.seen
        replaced = newest > worker.seen and silent_s > REPLACED_S
        return Event.WORKER_LOST if silent_s > self._silent_s or replaced else Event.JOINED


def _detail(worker: RemoteWorker) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "host": worker.identity.host,
        "worker": worker.identity.worker,
        "environments": worker.envs,
    }
    if worker.last_event == Event.WORKER_LOST:
        envs = "its environment" if worker.envs == 1 else f"its {worker.envs} environments"
        detail[TERMINAL_TEXT] = f"lost a worker on {worker.identity.host}: the run continues without {envs}"
    return detail


class Membership:
    """What a worker reports to its own launcher: whether it takes part in the run. `aloud`: on the screen, too."""

    def __init__(self, context: RoleContext, aloud: bool = True) -> None:
        self._report = context.report
        self._key = TERMINAL_TEXT if aloud else "text"
        self._state: Event | None = None

    def joined(self, address: str, envs: int) -> None:
        if self._state != Event.JOINED:
            verb = "rejoined" if self._state else "joined"
            these = "1 environment" if envs == 1 else f"{envs} environments"
            self._say(Event.JOINED, f"{verb} the run at {address} with {these}")

    def lost(self, reason: str) -> None:
        if self._state == Event.JOINED:
            self._say(Event.RUN_LOST, f"lost its connection to the run and will rejoin as soon as it can: {reason}")

    def ended(self) -> None:
        self._say(Event.RUN_ENDED, "the run has ended")

    def _say(self, event: Event, text: str) -> None:
        self._state = event
        self._report.event(event, {self._key: text})
