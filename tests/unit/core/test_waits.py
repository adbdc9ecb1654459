from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from dreamfleet.core.waits import Wait, Waits


@pytest.fixture
def waits(manual_time, monkeypatch) -> Waits:
    monkeypatch.setattr("dreamfleet.core.waits.time", SimpleNamespace(monotonic=manual_time))
    return Waits()


def test_a_wait_in_progress_shows_its_name_and_its_seconds_so_far(waits, manual_time):
    with waits(Wait.REPLAY_TO_SAMPLE):
        manual_time.advance(3)
        assert waits.current() == {Wait.REPLAY_TO_SAMPLE: 3}
        assert waits.totals() == {Wait.REPLAY_TO_SAMPLE: 3}
    assert waits.current() == {}


def test_totals_add_up_the_waits_of_a_name(waits, manual_time):
    for seconds in (1, 2):
        with waits(Wait.ACTIONS):
            manual_time.advance(seconds)
    assert waits.totals() == {Wait.ACTIONS: 3}


def test_a_wait_that_raises_is_over(waits, manual_time):
    with pytest.raises(KeyError), waits(Wait.ACTIONS):
        manual_time.advance(1)
        raise KeyError("x")
    assert waits.current() == {}
    assert waits.totals() == {Wait.ACTIONS: 1}


def test_two_threads_may_wait_for_the_same_thing(waits, manual_time):
    inside, leave = threading.Event(), threading.Event()

    def wait() -> None:
        with waits(Wait.REPLAY):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=wait)
    with waits(Wait.REPLAY):
        thread.start()
        assert inside.wait(10)
        manual_time.advance(2)
    assert Wait.REPLAY in waits.current()
    leave.set()
    thread.join(10)
    assert waits.current() == {}
    assert waits.totals() == {Wait.REPLAY: 4}


def test_metrics_name_the_part_and_what_it_waited_for(waits, manual_time):
    with waits(Wait.REPLAY_TO_SAMPLE):
        manual_time.advance(2)
    assert waits.metrics("learner") == {"wait/learner/replay_to_sample_s": 2}
