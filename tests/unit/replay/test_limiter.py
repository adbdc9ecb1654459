"""How the limiter holds samples per insert, alone and between threads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dreamfleet.core.errors import DeadlineExceeded, Stopped
from dreamfleet.replay.limiter import SamplesPerInsert

BATCH, LENGTH = 16, 64
MIN_SIZE = 1040  # 16 windows of 65 steps
NOW = 0.0  # a wait that may not wait
WAIT_S = 20.0
LONG_S = 60.0  # longer than a test waits: only a wake-up ends such a wait in time


def sample(limiter: SamplesPerInsert, windows: int, timeout_s: float) -> None:
    limiter.await_sample(timeout_s)
    limiter.sampled(windows)


def make_limiter(ratio: float, has_windows: Callable[[], bool] = lambda: True) -> SamplesPerInsert:
    return SamplesPerInsert(ratio / LENGTH, MIN_SIZE, 4 * BATCH, has_windows)


def allowed(wait: Callable[[], None]) -> bool:
    try:
        wait()
    except DeadlineExceeded:
        return False
    return True


def may_insert(limiter: SamplesPerInsert) -> bool:
    return allowed(lambda: limiter.await_insert(NOW))


def insert(limiter: SamplesPerInsert, rows: int = 1) -> None:
    limiter.await_insert(NOW)
    limiter.inserted(rows)


def sample_all(limiter: SamplesPerInsert) -> None:
    while allowed(lambda: sample(limiter, BATCH, NOW)):
        pass


class Waiting:
    """A call in a thread of its own. `parked` returns once the thread waits inside the limiter."""

    def __init__(self, limiter: SamplesPerInsert, call: Callable[[], None]) -> None:
        self._parked = threading.Event()
        condition = limiter._changed
        wait = condition.wait

        def announce(timeout: float | None = None) -> bool:
            self._parked.set()  # the lock is still held: whoever takes it next finds this thread waiting
            return wait(timeout)

        condition.wait = announce  # type: ignore[method-assign]
        pool = ThreadPoolExecutor(1)
        self.outcome: Future[None] = pool.submit(call)
        pool.shutdown(wait=False)

    def parked(self) -> bool:
        return self._parked.wait(WAIT_S) and not self.outcome.done()


class Timeline:
    """A clock, and what happens in the limiter while a thread waits there: a wait takes no time of the test."""

    def __init__(self, make: Callable[..., SamplesPerInsert], event: Callable[[SamplesPerInsert], None], every: float):
        self.now = 1000.0
        self.limiter = make(lambda: self.now)
        self.limiter._changed.wait = self._wait  # type: ignore[method-assign]
        self.left = 0  # how often the event happens still
        self._event = event
        self._every = every
        self._next = self.now + every
        self.notices: list[float] = []

    def _wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        assert timeout > 0
        until = self.now + timeout
        if not self.left or self._next > until:
            self.now = until
            return False
        self.now, self._next, self.left = self._next, self._next + self._every, self.left - 1
        self._event(self.limiter)
        return True

    def notify(self) -> None:
        self.notices.append(self.now)


def behind(now: Callable[[], float]) -> SamplesPerInsert:
    """Waits for 2991 steps before it lets a window through."""
    limiter = SamplesPerInsert(32 / LENGTH, MIN_SIZE, 4 * BATCH, now=now)
    limiter.inserted(1)
    return limiter


def ahead(now: Callable[[], float]) -> SamplesPerInsert:
    """Waits for 937 windows before it lets a step through: the balance is 1000, and may be less than 64."""
    limiter = SamplesPerInsert(64 / LENGTH, MIN_SIZE, 4 * BATCH, now=now)
    limiter.inserted(3079)
    return limiter


def test_a_wait_to_sample_goes_on_as_long_as_steps_are_inserted() -> None:
    timeline = Timeline(behind, lambda limiter: limiter.inserted(1), every=9.0)
    timeline.left = 2991
    timeline.limiter.await_sample(10.0, timeline.notify)
    assert timeline.now == 1000.0 + 2991 * 9.0


def test_a_wait_to_insert_goes_on_as_long_as_windows_are_sampled() -> None:
    timeline = Timeline(ahead, lambda limiter: limiter.sampled(1), every=9.0)
    timeline.left = 937
    timeline.limiter.await_insert(10.0, timeline.notify)
    assert timeline.now == 1000.0 + 937 * 9.0


@pytest.mark.parametrize(
    ("make", "event", "call", "reason"),
    [
        (behind, SamplesPerInsert.inserted, SamplesPerInsert.await_sample, "sample .*: 21 of 2,992 steps before"),
        (ahead, SamplesPerInsert.sampled, SamplesPerInsert.await_insert, "insert .*: 917 more windows"),
    ],
    ids=["sample", "insert"],
)
def test_a_wait_ends_a_deadline_after_the_last_progress(make: Any, event: Any, call: Any, reason: str) -> None:
    timeline = Timeline(make, lambda limiter: event(limiter, 1), every=9.0)
    timeline.left = 20
    with pytest.raises(DeadlineExceeded, match=rf"replay {reason}"):
        call(timeline.limiter, 10.0)
    assert timeline.now == 1000.0 + 20 * 9.0 + 10.0


def test_a_wait_gives_notice_more_often_than_its_deadline_whatever_happens_in_between() -> None:
    timeline = Timeline(behind, lambda limiter: limiter.inserted(1), every=0.1)
    timeline.left = 2991
    timeline.limiter.await_sample(10.0, timeline.notify)
    gaps = [later - sooner for sooner, later in itertools.pairwise(timeline.notices)]
    assert (timeline.notices[0], timeline.now - timeline.notices[-1] < 2.6) == (1000.0, True)
    assert all(2.5 <= gap < 2.6 + 1e-6 for gap in gaps)


def test_many_short_waits_give_notice_as_often_as_a_long_one() -> None:
    """Callers that queue for a method wait for all the calls before theirs."""
    timeline = Timeline(ahead, lambda limiter: limiter.sampled(64), every=1.0)
    for _ in range(30):
        timeline.left = 100
        timeline.limiter.await_insert(10.0, timeline.notify)
        timeline.limiter.inserted(1000 - int(timeline.limiter.stats()["balance"]))
    gaps = [later - sooner for sooner, later in itertools.pairwise(timeline.notices)]
    assert gaps
    assert max(gaps) <= 3.5


@pytest.mark.parametrize(
    ("ratio", "inserts"),
    [(32, 2992), (64, 2016), (256, 1284), (512, 1162), (1024, 1101)],  # from the specification, part C3
)
def test_the_first_sample_is_allowed_after_as_many_inserts_as_specified(ratio: float, inserts: int) -> None:
    limiter = make_limiter(ratio)
    for _ in range(inserts - 1):
        insert(limiter)
    assert not allowed(lambda: sample(limiter, 1, NOW))
    insert(limiter)
    sample(limiter, 1, NOW)


@pytest.mark.parametrize("rows", [1, 7, 16, 1000, 5000])
def test_rows_inserted_together_count_like_rows_inserted_one_by_one(rows: int) -> None:
    together, alone = make_limiter(32), make_limiter(32)
    for _ in range(3):
        together.inserted(rows)
        for _ in range(rows):
            alone.inserted(1)
    assert together.save() == alone.save()


def test_the_first_insert_that_reaches_the_minimum_counts() -> None:
    limiter = make_limiter(32)
    limiter.inserted(MIN_SIZE - 1)
    assert limiter.stats()["balance"] == -1040
    limiter.inserted(1)
    assert limiter.stats()["balance"] == -1039.5


@pytest.mark.parametrize("ratio", [32, 64, 256, 1024])
@pytest.mark.parametrize("rows", [1, 16])
def test_in_the_long_run_samples_per_insert_are_as_configured(ratio: float, rows: int) -> None:
    limiter = make_limiter(ratio)
    limiter.inserted(3000)
    sample_all(limiter)
    before = limiter.stats()
    for _ in range(8000 // rows):
        insert(limiter, rows)
        sample_all(limiter)
    after = limiter.stats()
    samples, inserts = (after[key] - before[key] for key in ("samples", "inserts"))
    assert samples / inserts == pytest.approx(ratio / LENGTH, rel=0.01)


def test_inserting_stops_at_the_tolerance_and_goes_on_after_one_sample() -> None:
    limiter = make_limiter(64)  # one window per step: inserting stops when the balance reaches 64
    limiter.inserted(MIN_SIZE)
    for _ in range(MIN_SIZE + 63):
        insert(limiter)
    assert limiter.stats()["balance"] == 64
    assert not may_insert(limiter)
    sample(limiter, 1, NOW)
    assert may_insert(limiter)


def test_sampling_stops_at_the_tolerance_and_goes_on_after_one_insert() -> None:
    limiter = make_limiter(64)
    limiter.inserted(2 * MIN_SIZE - 1)
    assert limiter.stats()["balance"] == 0
    sample(limiter, 64, NOW)
    assert not allowed(lambda: sample(limiter, 1, NOW))
    limiter.inserted(1)
    sample(limiter, 1, NOW)


def test_sampling_waits_for_a_window_even_when_there_are_steps_enough() -> None:
    windows: list[int] = []
    limiter = make_limiter(64, has_windows=lambda: bool(windows))
    limiter.inserted(2 * MIN_SIZE)
    with pytest.raises(DeadlineExceeded, match="a stream long enough for one window"):
        sample(limiter, 1, NOW)
    windows.append(1)
    sample(limiter, 1, NOW)


def test_inserting_never_waits_while_there_is_no_window_to_sample() -> None:
    """Many short streams hold many steps and no window: waiting for a sample would be waiting for ever."""
    windows: list[int] = []
    limiter = make_limiter(1024, has_windows=lambda: bool(windows))
    for _ in range(200):
        insert(limiter, 16)
    windows.append(1)
    assert not may_insert(limiter)
    sample(limiter, 1, NOW)


@pytest.mark.parametrize("ratio", [0, -1])
def test_without_a_ratio_only_the_minimum_size_counts(ratio: float) -> None:
    limiter = make_limiter(ratio)
    limiter.inserted(MIN_SIZE - 1)
    assert not allowed(lambda: sample(limiter, 1, NOW))
    limiter.inserted(1)
    for _ in range(1000):
        sample(limiter, BATCH, NOW)
        insert(limiter, 100)


def test_a_waiting_sample_is_woken_by_an_insert() -> None:
    limiter = make_limiter(64)
    limiter.inserted(2 * MIN_SIZE - 1)
    sample(limiter, 64, NOW)
    waiting = Waiting(limiter, lambda: sample(limiter, 1, LONG_S))
    assert waiting.parked()
    limiter.inserted(1)
    waiting.outcome.result(WAIT_S)
    assert limiter.stats()["samples"] == 65
    assert limiter.stats()["sample_wait_s"] > 0


def test_a_waiting_insert_is_woken_by_a_sample() -> None:
    limiter = make_limiter(64)
    limiter.inserted(2 * MIN_SIZE - 1 + 64)
    waiting = Waiting(limiter, lambda: limiter.await_insert(LONG_S))
    assert waiting.parked()
    so_far = limiter.stats()
    assert so_far["insert_wait_s"] > so_far["sample_wait_s"] == 0
    sample(limiter, 1, NOW)
    waiting.outcome.result(WAIT_S)
    assert limiter.stats()["insert_wait_s"] > so_far["insert_wait_s"]


@pytest.mark.parametrize(
    ("rows", "call"),
    [
        (10, lambda limiter: sample(limiter, 1, LONG_S)),
        (2 * MIN_SIZE + 63, lambda limiter: limiter.await_insert(LONG_S)),
    ],
    ids=["sample", "insert"],
)
def test_close_ends_a_wait(rows: int, call: Callable[[SamplesPerInsert], None]) -> None:
    limiter = make_limiter(64)
    limiter.inserted(rows)
    waiting = Waiting(limiter, lambda: call(limiter))
    assert waiting.parked()
    limiter.close()
    with pytest.raises(Stopped):
        waiting.outcome.result(WAIT_S)


def test_once_closed_nothing_is_let_through() -> None:
    limiter = make_limiter(64)
    limiter.close()
    with pytest.raises(Stopped):
        limiter.await_insert(NOW)
    with pytest.raises(Stopped):
        sample(limiter, 1, NOW)


def test_a_deadline_says_what_was_waited_for_and_how_far_it_came() -> None:
    limiter = make_limiter(32)
    limiter.inserted(812)
    waited = "replay sample waited 0 s without progress"
    with pytest.raises(DeadlineExceeded, match=f"{waited}: 812 of 2,992 steps before the first update"):
        sample(limiter, 1, NOW)
    limiter.inserted(2991 - 812)
    with pytest.raises(DeadlineExceeded, match=f"{waited}: 2,991 of 2,992 steps before the first update"):
        sample(limiter, 1, NOW)
    limiter.inserted(193)  # 2992 let the balance pass -64; 192 more steps at 0.5 each take it to +32.5
    with pytest.raises(DeadlineExceeded, match="insert waited 0 s without progress: 1 more windows to be sampled"):
        limiter.await_insert(NOW)
    sample(limiter, 1, NOW)
    assert limiter.status() == {"state": "open", "missing": 0, "inserts": 3184, "waits_for": "nothing"}
    sample(limiter, 96, NOW)
    with pytest.raises(DeadlineExceeded, match=f"{waited}: 2 more steps to be inserted"):
        sample(limiter, 1, NOW)


@pytest.mark.parametrize("ratio", [32, 64, 256, 512, 1024, 8192, 0])
@pytest.mark.parametrize("rows", [0, 700, 1039, 1040, 1100])
def test_as_many_steps_are_missing_as_are_inserted_before_a_sample_is_allowed(ratio: float, rows: int) -> None:
    limiter = make_limiter(ratio)
    limiter.inserted(rows)
    missing, inserted = 0 if limiter.can_sample() else limiter.status()["missing"], 0
    while not limiter.can_sample():
        limiter.inserted(1)
        inserted += 1
    assert missing == inserted


def test_the_counts_continue_after_save_and_load() -> None:
    limiter, restored = make_limiter(64), make_limiter(64)
    limiter.inserted(2 * MIN_SIZE - 1)
    sample(limiter, 63, NOW)
    restored.load(limiter.save())
    assert restored.save() == limiter.save() == {"size": 2079, "samples": 63, "balance": -63}
    sample(restored, 1, NOW)
    assert not allowed(lambda: sample(restored, 1, NOW))


@pytest.mark.parametrize(("before", "after"), [(32, 64), (256, 32)])
def test_a_ratio_that_changed_on_resume_holds_from_there_on(before: float, after: float) -> None:
    limiter, resumed = make_limiter(before), make_limiter(after)
    limiter.inserted(4000)
    sample_all(limiter)
    resumed.load(limiter.save())
    assert resumed.save() == limiter.save()
    assert resumed.stats()["inserts"] == 4000
    start = resumed.stats()
    for _ in range(8000):
        insert(resumed)
        sample_all(resumed)
    end = resumed.stats()
    assert (end["samples"] - start["samples"]) / 8000 == pytest.approx(after / LENGTH, rel=0.01)
