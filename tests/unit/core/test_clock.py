from __future__ import annotations

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dreamfleet.core.clock import ClockBoard, GlobalClock, LocalClock
from dreamfleet.core.errors import DeadlineExceeded, DreamfleetError, Stopped


class CountingBoard:
    """Counts the reads that reach the board: each would be a call over the network."""

    def __init__(self, board: ClockBoard) -> None:
        self.board, self.reads = board, 0

    def decided(self, name: str, index: int, timeout_s: float) -> tuple[int, list[int]]:
        self.reads += 1
        return self.board.decided(name, index, timeout_s)


def test_zero_never_fires(manual_time):
    clock = LocalClock(0, manual_time)
    manual_time.advance(1e9)
    assert not clock()


def test_negative_always_fires(manual_time):
    clock = LocalClock(-1, manual_time)
    assert [clock(), clock(), clock()] == [True, True, True]


def test_first_firing_comes_one_interval_after_creation(manual_time):
    clock = LocalClock(10, manual_time)
    assert not clock()
    manual_time.advance(9.5)
    assert not clock()
    manual_time.advance(0.5)
    assert clock()
    assert not clock()


def test_interval_counts_from_the_last_firing_and_a_pause_is_not_caught_up(manual_time):
    clock = LocalClock(10, manual_time)
    manual_time.advance(35)
    assert clock()
    assert not clock()
    manual_time.advance(9)
    assert not clock()
    manual_time.advance(1)
    assert clock()


@pytest.mark.parametrize("every", [0, -1, 0.5, 3])
def test_global_clock_of_one_replica_equals_the_local_clock(manual_time, every):
    local, alone = LocalClock(every, manual_time), GlobalClock(every, "log", time_fn=manual_time)
    steps = random.Random(0)
    for _ in range(1000):
        manual_time.advance(steps.random())
        assert alone() == local()


def test_three_replicas_see_the_same_decisions_however_their_calls_interleave(manual_time):
    board = ClockBoard()
    replicas = [GlobalClock(2, "log", index, 3, board, time_fn=manual_time) for index in range(3)]
    answers: list[list[bool]] = [[], [], []]
    order = random.Random(1)
    while min(len(seen) for seen in answers) < 1000:
        manual_time.advance(order.random())
        index = order.randrange(3)
        # One thread drives all three here, so a follower may not overtake replica 0: it would wait for itself.
        if index == 0 or len(answers[index]) < len(answers[0]):
            answers[index].append(replicas[index]())
    first = answers[0][:1000]
    assert 0 < sum(first) < 1000
    assert answers[1][:1000] == first
    assert answers[2][:1000] == first


def test_followers_in_threads_of_their_own_see_the_same_decisions():
    ticks = itertools.count()
    board = ClockBoard()
    clocks = [GlobalClock(7, "save", index, 3, board, timeout_s=30, time_fn=lambda: next(ticks)) for index in range(3)]

    def run(clock: GlobalClock) -> list[bool]:
        return [clock() for _ in range(1000)]

    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(run, clocks)
    assert any(first)
    assert others == [first, first]


def test_follower_asks_once_for_all_that_is_already_decided(manual_time):
    board = ClockBoard()
    leader = GlobalClock(5, "log", 0, 2, board, time_fn=manual_time)
    counting = CountingBoard(board)
    follower = GlobalClock(5, "log", 1, 2, counting, time_fn=manual_time)
    expected = []
    for _ in range(200):
        manual_time.advance(1)
        expected.append(leader())
    assert [follower() for _ in range(200)] == expected
    assert counting.reads == 1


@pytest.mark.parametrize("every", [0, -1])
def test_never_and_always_need_no_board(every):
    follower = GlobalClock(every, "log", 1, 2)
    assert follower() == (every < 0)


def test_follower_waits_for_replica_zero():
    board = ClockBoard()
    follower = GlobalClock(5, "log", 1, 2, board, timeout_s=30)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(follower)
        board.record("log", True)
        assert answer.result(timeout=30)


def test_a_wait_past_its_deadline_names_the_clock_and_can_be_repeated():
    board = ClockBoard()
    follower = GlobalClock(5, "report", 1, 2, board, timeout_s=0.01)
    with pytest.raises(DeadlineExceeded, match=r"clock 'report'.* call 0 within 0\.01 s"):
        follower()
    board.record("report", True)
    assert follower()


def test_clocks_of_different_names_do_not_mix():
    board = ClockBoard()
    board.record("log", True)
    board.record("save", False)
    assert board.decided("log", 0, 1) == (1, [0])
    assert board.decided("save", 0, 1) == (1, [])


def test_board_memory_stays_bounded_and_a_reader_too_far_behind_is_told():
    board = ClockBoard(history=4)
    for _ in range(10):
        board.record("log", True)
        board.record("log", False)
    # Calls 0, 2, ..., 18 fired; the last four of them are kept, so everything after call 10 is known.
    assert board.decided("log", 11, 1) == (20, [12, 14, 16, 18])
    with pytest.raises(DreamfleetError, match="call 10 is forgotten, only calls from 11 of 20"):
        board.decided("log", 10, 1)


def test_readers_cannot_make_the_board_grow():
    board = ClockBoard()
    for index in range(20):
        with pytest.raises(DeadlineExceeded):
            board.decided(f"made up {index}", 0, 0)
    assert not board._tracks


def test_closing_the_board_ends_a_wait_at_once():
    board = ClockBoard()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            board.decided("log", 0, 60)
        except Stopped as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    board.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_decisions_made_before_the_close_can_still_be_read():
    board = ClockBoard()
    board.record("log", True)
    board.close()
    assert board.decided("log", 0, 1) == (1, [0])


@pytest.mark.parametrize(
    ("replica", "replicas", "board", "message"),
    [
        (2, 2, None, "replica 2 is not one of 2"),
        (-1, 2, None, "replica -1 is not one of 2"),
        (1, 2, None, "needs replica 0's board"),
        (0, 2, CountingBoard(ClockBoard()), "needs the ClockBoard itself"),
    ],
)
def test_a_clock_that_cannot_work_is_refused(replica, replicas, board, message):
    with pytest.raises(ValueError, match=message):
        GlobalClock(5, "log", replica, replicas, board)
