"""Means of metrics between two writes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.interfaces import Logger
from dreamfleet.metrics.aggregate import MetricsLogger


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
    logger.add({"a": np.float32(0.5), "b": np.array(3), "c": True, "image": np.zeros((2, 2)), "name": "x"})
    logger.write()
    values = {key: value for key, value in sink.rows[0].items() if key not in ("step", "time")}
    assert values == {"a": 0.5, "b": 3, "c": 1}


def test_nothing_is_written_when_nothing_was_added(sink) -> None:
    logger = MetricsLogger([sink])
    logger.write()
    assert sink.rows == []


def test_every_sink_gets_every_row_and_is_closed_with_the_logger(sink) -> None:
    other = ListSink()
    logger = MetricsLogger([sink, other])
    logger.add({"loss": 1})
    logger.write()
    logger.close()
    assert sink.rows == other.rows
    assert sink.closed
    assert other.closed
