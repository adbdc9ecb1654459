"""Section times from totals that only grow."""

from __future__ import annotations

from dreamfleet.metrics.sections import SectionTotals, server_totals


def test_each_call_shows_what_came_since_the_last_one(manual_time) -> None:
    sections = SectionTotals(manual_time)
    manual_time.advance(10)
    assert sections.stats({"add": (4, 2.0), "idle": (0, 0.0)}) == {
        "add/count": 4,
        "add/avg_ms": 500.0,
        "add/total_s": 2.0,
        "add/frac": 0.2,
    }
    manual_time.advance(4)
    later = sections.stats({"add": (4, 2.0), "idle": (2, 1.0)})
    assert later == {"idle/count": 2, "idle/avg_ms": 500.0, "idle/total_s": 1.0, "idle/frac": 0.25}


def test_the_methods_of_a_server_are_its_sections() -> None:
    stats = {"malformed": 0, "add/requests": 3, "add/busy_s": 0.5, "add/errors": 0, "sample/requests": 1}
    assert server_totals({**stats, "sample/busy_s": 2.0}) == {"add": (3, 0.5), "sample": (1, 2.0)}
