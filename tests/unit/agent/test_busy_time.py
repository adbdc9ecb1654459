"""Seconds with and without work on the device, from when work was dispatched and when it ended."""

from __future__ import annotations

import gc
import threading
from typing import Any

from dreamfleet.agent.device.busy_time import DeviceTime

DEADLINE_S = 10.0


class Work:
    """A result that is ready when the test says so."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def finish(self) -> None:
        self.done.set()

    def block_until_ready(self) -> None:
        if not self.done.wait(DEADLINE_S):
            raise TimeoutError


class Failing(Work):
    def block_until_ready(self) -> None:
        super().block_until_ready()
        raise RuntimeError("the device failed")


class Device:
    """Dispatches and ends work at given times."""

    def __init__(self) -> None:
        self.time = 0.0
        self.ended = threading.Semaphore(0)
        self.measured = DeviceTime(lambda: self.time)

    def dispatch(self, at: float, work: Any = None) -> Any:
        work = work or Work()
        self.measured.dispatched(at, work)
        self.measured._pool.submit(self.ended.release)
        return work

    def end(self, work: Any, at: float) -> None:
        self.time = at
        work.finish()
        assert self.ended.acquire(timeout=DEADLINE_S)

    def totals(self, at: float) -> tuple[float, float]:
        self.time = at
        totals = self.measured.totals()
        return totals["busy"], totals["idle"]


def test_nothing_is_counted_before_the_first_work() -> None:
    assert Device().totals(at=100.0) == (0.0, 0.0)


def test_time_between_two_pieces_of_work_is_idle() -> None:
    device = Device()
    first = device.dispatch(at=10.0)
    assert device.totals(at=11.0) == (1.0, 0.0)
    device.end(first, at=14.0)
    assert device.totals(at=17.0) == (4.0, 3.0)
    device.end(device.dispatch(at=20.0), at=21.0)
    assert device.totals(at=21.0) == (5.0, 6.0)


def test_work_that_is_dispatched_before_the_last_has_ended_leaves_no_gap() -> None:
    device = Device()
    first, second = device.dispatch(at=10.0), device.dispatch(at=12.0)
    device.end(first, at=20.0)
    assert device.totals(at=25.0) == (15.0, 0.0), "the second is under way"
    device.end(second, at=30.0)
    assert device.totals(at=30.0) == (20.0, 0.0)


def test_work_that_fails_ends() -> None:
    device = Device()
    device.end(device.dispatch(1.0, Failing()), at=3.0)
    device.end(device.dispatch(at=4.0), at=9.0)
    assert device.totals(at=11.0) == (7.0, 3.0)


def test_its_thread_ends_with_it() -> None:
    device = Device()
    device.end(device.dispatch(at=1.0), at=2.0)
    (thread,) = device.measured._pool._threads
    del device
    gc.collect()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
