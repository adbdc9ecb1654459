from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest

from dreamfleet.core.errors import Stopped
from dreamfleet.core.stop import Stop


@pytest.fixture
def stop() -> Iterator[Stop]:
    switch = Stop()
    yield switch
    switch.close()


def readable(stop: Stop, timeout_s: float = 0) -> bool:
    return bool(select.select([stop.fileno()], [], [], timeout_s)[0])


def test_is_off_until_set(stop):
    assert not stop.is_set()
    assert not readable(stop)
    assert not stop.wait(0)
    stop.check()


def test_once_set_it_stays_set(stop):
    stop.set()
    stop.set()
    for _ in range(2):
        assert stop.is_set()
        assert stop.wait(0)
        assert readable(stop)


def test_check_raises_once_set(stop):
    stop.set()
    with pytest.raises(Stopped):
        stop.check()


@pytest.mark.parametrize("wait", [lambda stop: stop.wait(60), lambda stop: readable(stop, 60)], ids=["event", "socket"])
def test_setting_wakes_a_waiting_thread(stop, wait):
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(wait(stop)))
    thread.start()
    stop.set()
    thread.join(timeout=10)
    assert woken == [True]


@pytest.mark.parametrize("when", ["before", "after"])
def test_it_also_sets_other_switches(stop: Stop, when: str) -> None:
    others = [Stop(), Stop()]
    if when == "before":
        stop.set()
    for other in others:
        stop.also_sets(other)
    if when == "after":
        assert not any(other.is_set() for other in others)
        stop.set()
    assert all(other.is_set() and readable(other) for other in others)


def test_another_switch_does_not_set_the_one_it_follows(stop: Stop) -> None:
    other = Stop()
    stop.also_sets(other)
    other.set()
    assert not stop.is_set()


def test_setting_after_the_close_still_ends_waits_for_time():
    stop = Stop()
    stop.close()
    stop.set()
    assert stop.wait(0)


def test_set_after_close_and_a_second_close_touch_no_foreign_descriptor() -> None:
    stop = Stop()
    stop.close()
    read_fd, write_fd = os.pipe()  # takes the numbers that the switch had
    try:
        stop.set()
        stop.close()
        os.set_blocking(read_fd, False)
        with pytest.raises(BlockingIOError):
            os.read(read_fd, 1)
    finally:
        os.close(read_fd)
        os.close(write_fd)
    assert stop.is_set()
