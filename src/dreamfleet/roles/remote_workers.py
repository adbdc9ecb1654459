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
from dreamfleet.roles.event_limit import FewEvents, Happening
from dreamfleet.roles.slots import MAX_SLOTS, SlotTable
from dreamfleet.transport.codec import pack_json, unpack_json

ABOUT = "about"  # the key, beside the environments that a worker joins with, of who it is
MAX_BYTES = 2048  # of all of it
MAX_CHARS = 100  # of each part of it
MAX_GUESTS = 1000  # further ones join, and are not watched
REPLACED_S = 1.0  # of silence after which a worker is taken to be gone if another one fills its place


class Who(NamedTuple):
    """A worker: its own name, its machine, and the place it fills there, in which its launcher starts it again.

    No other worker may have the same place: one that is silent for a second while the other joins is taken for lost.
    """

    worker: str
    host: str
    place: str

    def message(self) -> Arrays:
        return {ABOUT: pack_json(self._asdict())}


def this_worker(worker: str, context: RoleContext, mode: str) -> Who:
    """The worker of this process. One that no launcher starts again has a place of its own."""
    host = socket.gethostname()
    try:
        started = psutil.Process(os.getppid()).create_time()  # numbers of processes are used again, and in containers
    except psutil.Error:
        started = None
    if context.by_hand or started is None:
        return Who(worker, host, worker)
    return Who(worker, host, f"{os.getppid()}-{started}-{mode}-{context.name}-{host}")


def who_joins(message: Arrays) -> Who | None:
    """None for a worker of the fleet itself."""
    if ABOUT not in message:
        return None
    if message[ABOUT].size > MAX_BYTES:
        raise ProtocolError(f"a worker says who it is in at most {MAX_BYTES} bytes")
    try:
        said = unpack_json(message[ABOUT])
        return Who(*("".join(filter(str.isprintable, str(said[key])))[:MAX_CHARS] for key in Who._fields))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a worker says who it is as JSON with {', '.join(Who._fields)}") from error


@dataclass
class Guest:
    """A worker from elsewhere and the streams of its environments."""

    who: Who
    seen: float
    joined: float = 0.0  # the last time
    streams: set[int] = field(default_factory=set)
    envs: int = 0  # when it was last complete
    told: Event | None = None  # the last event


class Guests:
    """The actor's list of workers from elsewhere. Guarded by the lock of the table of slots.

    One is lost when it was silent for `silent_s`, or when another one has joined in its place since it was last heard
    of. It may be heard of again.
    """

    def __init__(self, silent_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._silent_s = silent_s
        self._now = now
        self._guests: dict[str, Guest] = {}
        self._few = FewEvents(now)

    def join(self, who: Who, old_streams: np.ndarray, streams: np.ndarray) -> None:
        if who.worker not in self._guests and len(self._guests) >= MAX_GUESTS:
            return
        guest = self._guests.setdefault(who.worker, Guest(who, self._now()))
        guest.streams = (guest.streams - set(old_streams.tolist())) | set(streams.tolist())
        if len(guest.streams) > MAX_SLOTS:
            guest.streams = set(streams.tolist())
        guest.seen = guest.joined = self._now()

    def leave(self, streams: np.ndarray) -> None:
        for guest in self._guests.values():
            guest.streams -= set(streams.tolist())

    def look(self, slots: SlotTable) -> list[Happening]:
        """What has happened since the last look: events and their details, not more than a few in a minute."""
        found = self._few.left_out()
        seen = dict(zip(slots.streams.tolist(), slots.seen.tolist(), strict=True)) if self._guests else {}
        newest: dict[str, float] = {}  # by place, when the last of its workers joined
        for guest in self._guests.values():
            guest.seen = max(guest.seen, *(seen.get(stream, 0.0) for stream in guest.streams), 0.0)
            # Streams that it did not give back when it joined again. Where all are unknown it will give them back.
            guest.streams = guest.streams & seen.keys() or guest.streams
            newest[guest.who.place] = max(guest.joined, newest.get(guest.who.place, 0.0))
        for guest in list(self._guests.values()):
            state = self._state(guest, newest[guest.who.place])
            guest.envs = len(guest.streams) or guest.envs
            if state != guest.told:
                guest.told = state
                found += self._few.few(state, _detail(guest))
            if state == Event.WORKER_LEFT or (state == Event.WORKER_LOST and guest.streams.isdisjoint(seen)):
                del self._guests[guest.who.worker]
        return found

    def _state(self, guest: Guest, newest: float) -> Event:
        if not guest.streams:
            return Event.WORKER_LEFT
        silent_s = self._now() - guest.seen
        replaced = newest > guest.seen and silent_s > REPLACED_S
        return Event.WORKER_LOST if silent_s > self._silent_s or replaced else Event.JOINED


def _detail(guest: Guest) -> dict[str, Any]:
    detail: dict[str, Any] = {"host": guest.who.host, "worker": guest.who.worker, "environments": guest.envs}
    if guest.told == Event.WORKER_LOST:
        envs = "its environment" if guest.envs == 1 else f"its {guest.envs} environments"
        detail[TERMINAL_TEXT] = f"lost a worker on {guest.who.host}: the run continues without {envs}"
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
