from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from dreamfleet.core.waits import Waits


@pytest.fixture
def waits(manual_time, monkeypatch) -> Waits:
    monkeypatch.setattr("dreamfleet.core.waits.time", SimpleNamespace(monotonic=manual_time))
    return Waits()


def test_a_wait_in_progress_shows_its_name_and_its_seconds_so_far(waits, manual_time):
    with waits("replay to sample"):
        manual_time.advance(3)
        assert waits.current() == {"replay to sample": 3}
        assert waits.totals() == {"replay to sample": 3}
    assert waits.current() == {}


def test_totals_add_up_the_waits_of_a_name(waits, manual_time):
    for seconds in (1, 2):
        with waits("actor"):
            manual_time.advance(seconds)
    assert waits.totals() == {"actor": 3}


def test_a_wait_that_raises_is_over(waits, manual_time):
    with pytest.raises(KeyError), waits("actor"):
        manual_time.advance(1)
        raise KeyError("x")
    assert waits.current() == {}
    assert waits.totals() == {"actor": 1}


def test_two_threads_may_wait_for_the_same_thing(waits, manual_time):
    inside, leave = threading.Event(), threading.Event()

    def wait() -> None:
        with waits("replay"):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=wait)
    with waits("replay"):
        thread.start()
        assert inside.wait(10)
        manual_time.advance(2)
    assert "replay" in waits.current()
    leave.set()
    thread.join(10)
    assert waits.current() == {}
    assert waits.totals() == {"replay": 4}
