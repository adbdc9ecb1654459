from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from dreamfleet.core.counters import Counters


def test_totals_add_up():
    counters = Counters()
    counters.add("steps")
    counters.add("steps", 15)
    counters.add("errors")
    assert counters.totals() == {"steps": 16, "errors": 1}
    assert counters.total("steps") == 16
    assert counters.total("never seen") == 0


def test_rates_are_per_second_since_the_last_call(manual_time):
    counters = Counters(manual_time)
    counters.add("steps", 30)
    manual_time.advance(10)
    assert counters.rates() == {"steps": 3}
    counters.add("steps", 5)
    manual_time.advance(2)
    assert counters.rates() == {"steps": 2.5}


def test_a_name_that_fell_silent_has_rate_zero(manual_time):
    counters = Counters(manual_time)
    counters.add("steps")
    manual_time.advance(1)
    counters.rates()
    manual_time.advance(1)
    assert counters.rates() == {"steps": 0}


def test_counts_are_not_lost_by_asking_when_no_time_has_passed(manual_time):
    counters = Counters(manual_time)
    counters.add("steps", 4)
    assert counters.rates() == {"steps": 0}
    manual_time.advance(2)
    assert counters.rates() == {"steps": 2}


def test_adding_from_many_threads_loses_nothing():
    counters = Counters()

    def work(_: int) -> None:
        for _ in range(2000):
            counters.add("steps")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert counters.total("steps") == 16000
