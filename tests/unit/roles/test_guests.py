"""Workers from elsewhere as the actor sees them, by a clock of the test."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.core.errors import ProtocolError
from dreamfleet.roles.guests import Guests, Membership, Who, who_joins
from dreamfleet.roles.slots import SlotTable
from dreamfleet.transport.codec import pack_json
from fakes import make_context

NONE = np.array([-1, -1])


class Room:
    """An actor's tables. Workers have two environments each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slots = SlotTable(180.0, now=lambda: self.now)
        self.guests = Guests(60.0, now=lambda: self.now)

    def join(self, worker: str, place: str = "", streams: np.ndarray = NONE) -> tuple[np.ndarray, np.ndarray]:
        slots, new, _ = self.slots.join(np.array([-1, -2]), streams)
        self.guests.join(Who(worker, "bigbox", place or worker), streams, new)
        return slots, new

    def events(self) -> list[tuple[str, str, int]]:
        return [(event, detail["worker"], detail["environments"]) for event, detail in self.guests.look(self.slots)]


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
    ((event, detail),) = room.guests.look(room.slots)
    assert (event, detail["host"], detail["environments"]) == ("worker_lost", "bigbox", 2)
    assert detail["say"] == "a worker on bigbox is lost: the run goes on without its 2 environments"
    assert room.events() == []
    room.slots.touch(slots)
    assert room.events() == [("joined", "one", 2)]


def test_a_worker_is_lost_once_another_one_fills_its_place() -> None:
    room = Room()
    room.join("one", "bigbox-1-env")
    room.join("slow", "bigbox-2-env")
    room.events()
    room.now = 5.0
    room.join("two", "bigbox-1-env")
    assert sorted(room.events()) == [("joined", "two", 2), ("worker_lost", "one", 2)]


def test_a_worker_that_leaves_is_not_lost() -> None:
    room = Room()
    _, streams = room.join("one")
    room.events()
    room.slots.leave(streams)
    room.guests.leave(streams)
    assert room.events() == [("worker_left", "one", 2)]
    room.now = 100.0
    assert room.events() == []


def test_what_a_worker_says_of_itself_is_shortened_and_printable() -> None:
    who = who_joins({"about": pack_json({"worker": "w" * 500, "host": "big\x1b[31mbox\n", "place": 3})})
    assert who == Who("w" * 100, "big[31mbox", "3")
    assert who_joins({}) is None
    with pytest.raises(ProtocolError, match="who it is as JSON"):
        who_joins({"about": pack_json({})})


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
        "lost its place in the run and joins again as soon as it can: the connection was lost",
        "joined the run at tcp://bigbox:5000 again with 8 environments",
        "the run has ended",
    ]
