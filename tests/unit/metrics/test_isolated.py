"""Sinks that fail in every way: the caller never waits, one line says so, the others go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dreamfleet.metrics.sinks.isolated import IsolatedSink, NotInstalled

WAIT_S = 20.0


class TestSink:
    """Remembers rows; `hangs` makes every write wait until `release`."""

    __test__ = False

    def __init__(self, fails: str = "", hangs: bool = False) -> None:
        self.fails = fails
        self.hangs = hangs
        self.rows: list[Any] = []
        self.closed = threading.Event()
        self.writing = threading.Event()
        self.release = threading.Event()
        self.threads: set[int] = set()

    def make(self) -> TestSink:
        self._fail("make")
        return self

    def write(self, row: Any) -> None:
        self.threads.add(threading.get_ident())
        self.writing.set()
        if self.hangs:
            assert self.release.wait(WAIT_S)
        self._fail("write")
        self.rows.append(row["step"])

    def close(self) -> None:
        self.closed.set()
        self._fail("close")

    def _fail(self, moment: str) -> None:
        if self.fails == moment:
            raise OSError(28, "No space left on device")


class Told(list[str]):
    """The lines told, and a way to wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def __call__(self, text: str) -> None:
        self.append(text)
        self.came.set()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def hanging() -> Iterator[TestSink]:
    sink = TestSink(hangs=True)
    yield sink
    sink.release.set()


def write(isolated: IsolatedSink, *steps: int) -> None:
    for step in steps:
        isolated.write({"step": step})


def end(isolated: IsolatedSink) -> None:
    isolated.end()
    isolated.wait_ended(WAIT_S)


def test_rows_are_written_in_order_by_another_thread_and_the_sink_is_closed(told) -> None:
    sink = TestSink()
    isolated = IsolatedSink("Test", sink.make, told)
    write(isolated, 1, 2, 3)
    end(isolated)
    assert sink.rows == [1, 2, 3]
    assert sink.closed.is_set()
    assert threading.get_ident() not in sink.threads
    assert told == []
    assert isolated.state() == "ok"


@pytest.mark.parametrize("moment", ["make", "write", "close"])
def test_one_that_raises_is_told_once_and_dropped(told, moment, capfd) -> None:
    sink = TestSink(fails=moment)
    isolated = IsolatedSink("Test", sink.make, told)
    write(isolated, 1)
    if moment == "close":
        end(isolated)
    assert told.came.wait(WAIT_S)
    write(isolated, 2, 3)
    end(isolated)
    assert told == ["Test is left out from here on, training goes on: OSError: [Errno 28] No space left on device"]
    assert sink.rows == ([1] if moment == "close" else [])
    assert "No space left" in isolated.state()
    assert "in _fail" in capfd.readouterr().err  # the log of the role says where


def test_one_that_exits_does_not_end_the_process(told) -> None:
    def make() -> TestSink:
        raise SystemExit(1)

    IsolatedSink("Test", make, told)
    assert told.came.wait(WAIT_S)
    assert told == ["Test is left out from here on, training goes on: SystemExit: 1"]


def test_one_that_hangs_is_dropped_after_its_deadline(told, hanging, manual_time) -> None:
    isolated = IsolatedSink("Test", hanging.make, told, deadline_s=60, time_fn=manual_time)
    write(isolated, 1)
    assert hanging.writing.wait(WAIT_S)
    manual_time.advance(60)
    write(isolated, 2)
    assert isolated.state() == "ok"
    manual_time.advance(0.1)
    assert "hangs" in isolated.state()
    assert told == ["Test is left out from here on, training goes on: it hangs, for longer than 60 s"]
    write(isolated, 3)
    hanging.release.set()
    assert hanging.closed.wait(WAIT_S)  # what it leaves open is closed if it ever comes back
    assert hanging.rows == [1]
    assert len(told) == 1


def test_its_beginning_may_take_longer_than_a_row(told, manual_time) -> None:
    started, go = threading.Event(), threading.Event()

    def make() -> TestSink:
        started.set()
        assert go.wait(WAIT_S)
        return TestSink()

    isolated = IsolatedSink("Test", make, told, start_s=300, deadline_s=60, time_fn=manual_time)
    assert started.wait(WAIT_S)
    manual_time.advance(300)
    assert isolated.state() == "ok"
    manual_time.advance(1)
    assert "longer than 300 s" in isolated.state()
    go.set()


def test_rows_that_find_the_queue_full_are_left_out(told, hanging, manual_time) -> None:
    isolated = IsolatedSink("Test", hanging.make, told, rows=2, deadline_s=60, time_fn=manual_time)
    write(isolated, 1)
    assert hanging.writing.wait(WAIT_S)
    write(isolated, 2, 3, 4)
    manual_time.advance(50)
    hanging.hangs = False
    hanging.release.set()
    end(isolated)
    assert hanging.rows == [1, 2, 3]
    assert told == []


class Gated(TestSink):
    """Writes a row whenever it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.started = threading.Semaphore(0)

    def write(self, row: Any) -> None:
        self.started.release()
        assert self.gate.acquire(timeout=WAIT_S)
        super().write(row)


def test_one_that_never_catches_up_is_dropped_although_every_row_is_quick_enough(told, manual_time) -> None:
    sink = Gated()
    isolated = IsolatedSink("Test", sink.make, told, rows=2, deadline_s=60, time_fn=manual_time)
    write(isolated, 1)
    assert sink.started.acquire(timeout=WAIT_S)
    write(isolated, 2, 3, 4)
    for step in (5, 6):
        manual_time.advance(25)
        sink.gate.release()
        assert sink.started.acquire(timeout=WAIT_S)
        write(isolated, step)
    assert isolated.state() == "ok"
    manual_time.advance(11)
    assert isolated.state() == "it has been too slow for 60 s"
    assert told == ["Test is left out from here on, training goes on: it has been too slow for 60 s"]
    sink.gate.release(5)


def test_one_that_catches_up_in_time_stays(told, manual_time) -> None:
    sink = Gated()
    isolated = IsolatedSink("Test", sink.make, told, rows=1, deadline_s=60, time_fn=manual_time)
    write(isolated, 1)
    assert sink.started.acquire(timeout=WAIT_S)
    write(isolated, 2, 3)
    manual_time.advance(50)
    sink.gate.release(2)
    with isolated._changed:
        assert isolated._changed.wait_for(lambda: isolated._behind_since is None, WAIT_S)
    manual_time.advance(50)
    write(isolated, 7)
    assert sink.started.acquire(timeout=WAIT_S)
    sink.gate.release()
    end(isolated)
    assert sink.rows == [1, 2, 7]
    assert told == []


def test_large_rows_wait_only_until_they_take_too_much_memory(told, hanging, monkeypatch) -> None:
    monkeypatch.setattr("dreamfleet.metrics.sinks.isolated.ROW_BYTES", 100)
    isolated = IsolatedSink("Test", hanging.make, told)
    write(isolated, 1)
    assert hanging.writing.wait(WAIT_S)
    for step, size in ((2, 90), (3, 20), (4, 10)):
        isolated.write({"step": step, "video": np.zeros(size, np.uint8)})
    hanging.release.set()
    end(isolated)
    assert hanging.rows == [1, 2, 4]


def test_the_end_waits_only_so_long(told, hanging) -> None:
    isolated = IsolatedSink("Test", hanging.make, told)
    write(isolated, 1)
    isolated.end()
    isolated.wait_ended(0.05)
    assert told == ["Test did not finish in time, what it had last may be missing: set a longer run.stop_timeout_s"]


def test_a_missing_library_is_told_in_its_own_words(told) -> None:
    def make() -> TestSink:
        raise NotInstalled("Test is not installed, training goes on without it: pip install test")

    isolated = IsolatedSink("Test", make, told)
    assert told.came.wait(WAIT_S)
    end(isolated)
    assert told == ["Test is not installed, training goes on without it: pip install test"]
