"""Workers from elsewhere as the actor sees them, by a clock of the test."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.core.context import RoleContext
from dreamfleet.core.errors import ProtocolError
from dreamfleet.roles.event_limit import MAX_EVENTS
from dreamfleet.roles.remote_workers import Membership, RemoteWorkers, WorkerIdentity, read_identity, this_worker
from dreamfleet.roles.slots import SlotTable
from dreamfleet.transport.codec import pack_json
from support.fakes import make_context

NONE = np.array([-1, -1])


class Room:
    """An actor's tables. Workers have two environments each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slots = SlotTable(180.0, now=lambda: self.now)
        self.workers = RemoteWorkers(60.0, now=lambda: self.now)

    def join(self, worker: str, place: str = "", streams: np.ndarray = NONE) -> tuple[np.ndarray, np.ndarray]:
        slots, new, _ = self.slots.join(np.array([-1, -2]), streams)
        self.workers.join(WorkerIdentity(worker, "bigbox", place or worker), streams, new)
        return slots, new

    def events(self) -> list[tuple[str, str, int]]:
        return [(event, detail["worker"], detail["environments"]) for event, detail in self.workers.look(self.slots)]


def test_a_worker_that_joins_is_told_once() -> None:
    room = Room()
    _, streams = room.join("one")
    assert room.events() == [("joined", "one", 2)]
    room.slots.forget()  # as after the loss of replay
    room.join("one", streams=streams)
    assert room.events() == []


def test_a_silent_worker_is_lost_and_may_be_heard_of_again() -> None:
    room = Room()
    slots, _ = room.join("one")
    room.events()
    room.now = 60.0
    assert room.events() == []
    room.now = 61.0
    ((event, detail),) = room.workers.look(room.slots)
    assert (event, detail["host"], detail["environments"]) == ("worker_lost", "bigbox", 2)
    assert detail["say"] == "lost a worker on bigbox: the run continues without its 2 environments"
    assert room.events() == []
    room.slots.mark_seen(slots)
    assert room.events() == [("joined", "one", 2)]


def test_a_worker_is_lost_once_another_one_fills_its_place() -> None:
    room = Room()
    room.join("one", "bigbox-1-env")
    room.join("slow", "bigbox-2-env")
    room.events()
    room.now = 5.0
    room.join("two", "bigbox-1-env")
    assert sorted(room.events()) == [("joined", "two", 2), ("worker_lost", "one", 2)]


def test_a_slow_worker_is_not_lost_because_another_one_of_its_place_is_heard_of() -> None:
    room = Room()
    room.join("slow", "bigbox-1-env")
    slots, _ = room.join("fast", "bigbox-1-env")
    room.events()
    room.now = 5.0
    room.slots.mark_seen(slots)
    assert room.events() == []


def test_no_two_workers_of_a_script_have_the_same_place() -> None:
    launched = RoleContext("env")
    places = [this_worker(worker, launched, mode).place for worker, mode in (("a", "train"), ("b", "eval"))]
    by_hand = RoleContext("env", by_hand=True)
    places += [this_worker(worker, by_hand, "train").place for worker in ("c", "d")]
    assert len(set(places)) == 4
    assert this_worker("a", launched, "train").place == this_worker("restarted", launched, "train").place


def test_a_worker_that_joins_over_and_over_does_not_fill_the_memory() -> None:
    room = Room()
    for _ in range(3):
        room.slots.leave(room.slots.streams)  # as after its connections were lost
        room.join("one")
    assert room.events() == [("joined", "one", 2)]
    assert len(room.workers._workers["one"].streams) == 2
    for start in range(0, 100_000, 1000):
        room.workers.join(WorkerIdentity("two", "bigbox", ""), NONE, np.arange(start, start + 1000))
    assert len(room.workers._workers["two"].streams) < 10_000


def test_many_workers_do_not_flood_the_events() -> None:
    room = Room()
    for number in range(MAX_EVENTS + 30):
        room.join(f"worker{number}")
    assert len(room.events()) == MAX_EVENTS
    room.now = 60.0
    assert room.workers.look(room.slots) == [("events_left_out", {"joined": 30})]


def test_a_worker_that_leaves_is_not_lost() -> None:
    room = Room()
    _, streams = room.join("one")
    room.events()
    room.slots.leave(streams)
    room.workers.leave(streams)
    assert room.events() == [("worker_left", "one", 2)]
    room.now = 100.0
    assert room.events() == []


def test_what_a_worker_says_of_itself_is_shortened_and_printable() -> None:
    identity = read_identity({"about": pack_json({"worker": "w" * 500, "host": "big\x1b[31mbox\n", "place": 3})})
    assert identity == WorkerIdentity("w" * 100, "big[31mbox", "3")
    assert read_identity({}) is None
    with pytest.raises(ProtocolError, match="who it is as JSON"):
        read_identity({"about": pack_json({})})


def test_a_worker_says_where_it_stands_in_one_line_each() -> None:
    context, report = make_context("env")
    membership = Membership(context)
    membership.lost("no connection yet")  # nothing to lose
    membership.joined("tcp://bigbox:5000", 8)
    membership.lost("the connection was lost")
    membership.lost("the connection was lost")
    membership.joined("tcp://bigbox:5000", 8)
    membership.ended()
    assert [detail["say"] for _, detail in report.events] == [
        "joined the run at tcp://bigbox:5000 with 8 environments",
        "lost its connection to the run and will rejoin as soon as it can: the connection was lost",
        "rejoined the run at tcp://bigbox:5000 with 8 environments",
        "the run has ended",
    ]
