"""Means of metrics between two writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.interfaces import Logger
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.metrics.sinks.isolated import IsolatedSink


class ListSink:
    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.closed = False

    def write(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


def test_follows_the_logger_protocol() -> None:
    assert isinstance(MetricsLogger([]), Logger)


def test_a_write_holds_the_means_since_the_last_one(sink) -> None:
    logger = MetricsLogger([sink])
    logger.add({"loss": 1.0, "norm": 4})
    logger.add({"loss": 2.0})
    logger.step = 50
    before = time.time()
    logger.write()
    logger.add({"loss": 7.0})
    logger.write()
    first, second = sink.rows
    assert before <= first["time"] <= time.time()
    assert {key: first[key] for key in ("step", "loss", "norm")} == {"step": 50, "loss": 1.5, "norm": 4}
    assert (second["loss"], "norm" in second) == (7, False)


def test_a_prefix_is_put_in_front_of_every_name(sink) -> None:
    logger = MetricsLogger([sink])
    logger.add({"loss": 1}, prefix="train")
    logger.add({"fps/env": 2})
    logger.write()
    assert set(sink.rows[0]) == {"step", "time", "train/loss", "fps/env"}


def test_scalars_of_every_kind_count_and_everything_else_is_left_out(sink) -> None:
    logger = MetricsLogger([sink])
    logger.add({"a": np.float32(0.5), "b": np.array(3), "c": True, "matrix": np.zeros((2, 2)), "name": "x"})
    logger.write()
    values = {key: value for key, value in sink.rows[0].items() if key not in ("step", "time")}
    assert values == {"a": 0.5, "b": 3, "c": 1}


def test_nothing_is_written_when_nothing_was_added(sink) -> None:
    logger = MetricsLogger([sink])
    logger.write()
    assert sink.rows == []


def test_several_numbers_are_put_together_until_the_next_write(sink) -> None:
    logger = MetricsLogger([sink])
    logger.add({"returns": np.array([1.0, 2.0])}, prefix="episode")
    logger.add({"returns": np.array([3.0])}, prefix="episode")
    logger.write()
    logger.write()
    (row,) = sink.rows
    assert row["episode/returns"].tolist() == [1, 2, 3]


def test_what_is_put_together_is_bounded(sink, monkeypatch) -> None:
    monkeypatch.setattr("dreamfleet.metrics.aggregate.MAX_VALUES", 3)
    logger = MetricsLogger([sink])
    for value in (1, 2, 3):
        logger.add({"returns": np.array([value, value])})
    logger.write()
    assert sink.rows[0]["returns"].tolist() == [1, 1, 2]


def test_a_video_is_handed_out_at_once(sink) -> None:
    logger = MetricsLogger([sink])
    logger.step = 30
    video = np.zeros((5, 4, 4, 3), np.uint8)
    logger.add({"openloop/image": video, "loss": 1.0}, prefix="report")
    (row,) = sink.rows
    assert row.keys() == {"step", "time", "report/openloop/image"}
    assert row["step"] == 30
    assert row["report/openloop/image"] is video


def test_isolated_sinks_get_every_row_and_say_how_they_are(sink) -> None:
    told: list[str] = []
    logger = MetricsLogger([], isolated=[IsolatedSink("List", lambda: sink, told.append)])
    logger.add({"loss": 1})
    logger.write()
    logger.close(20.0)
    assert sink.rows[0]["loss"] == 1
    assert sink.closed
    assert logger.sinks() == {"List": "ok"}


def test_names_that_a_file_or_terminal_could_not_show_are_left_out(sink) -> None:
    logger = MetricsLogger([sink])
    logger.add({"n" * 500_000: 1.0, "red\x1b[31m": 1.0, "line\n": 2.0, "good": 3.0, "n" * 257: np.zeros(3)})
    logger.write()
    assert sink.rows[0].keys() == {"step", "time", "good"}


def test_the_end_waits_for_all_isolated_sinks_together(sink) -> None:
    release = threading.Event()
    told: list[str] = []

    def hang() -> ListSink:
        release.wait(20.0)
        return ListSink()

    hanging = [IsolatedSink(f"Hangs {number}", hang, told.append) for number in range(20)]
    logger = MetricsLogger([sink], isolated=hanging)
    start = time.monotonic()
    logger.close(0.2)
    assert time.monotonic() - start < 2.0
    assert len(told) == 20
    assert sink.closed
    release.set()


def test_every_sink_gets_every_row_and_is_closed_with_the_logger(sink) -> None:
    other = ListSink()
    logger = MetricsLogger([sink, other])
    logger.add({"loss": 1})
    logger.write()
    logger.close()
    assert sink.rows == other.rows
    assert sink.closed
    assert other.closed
