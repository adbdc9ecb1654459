"""Metrics as lines of JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.metrics.sinks.jsonl import JsonlSink


def refuse_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=refuse_constant) for line in path.read_text().splitlines()]


def test_writes_one_object_per_line_that_is_readable_at_once(tmp_path) -> None:
    sink = JsonlSink(tmp_path / "run" / "metrics.jsonl")
    sink.write({"step": 1, "loss": 0.5})
    sink.write({"step": np.int64(2), "loss": np.float32(0.25)})
    assert read(tmp_path / "run" / "metrics.jsonl") == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    sink.close()


def test_what_json_has_no_number_for_becomes_null(tmp_path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write({"a": float("nan"), "b": np.float32("inf"), "c": -np.inf, "d": 0.0})
    sink.close()
    assert read(tmp_path / "metrics.jsonl") == [{"a": None, "b": None, "c": None, "d": 0}]


def test_a_continued_run_appends(tmp_path) -> None:
    for step in (1, 2):
        sink = JsonlSink(tmp_path / "metrics.jsonl")
        sink.write({"step": step})
        sink.close()
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]


def test_what_is_no_number_is_left_out(tmp_path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write({"step": 1, "time": 2.0, "returns": np.zeros(3), "loss": 0.5})
    sink.write({"step": 1, "time": 2.0, "video": np.zeros((2, 4, 4, 3), np.uint8)})
    sink.close()
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1, "time": 2.0, "loss": 0.5}]


@pytest.mark.parametrize("content", ['{"step": 1}\n{"st', '{"step": 1}\n'])
def test_a_continued_run_goes_on_after_the_last_whole_line(tmp_path, content) -> None:
    (tmp_path / "metrics.jsonl").write_text(content)
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write({"step": 2})
    sink.close()
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]


def test_what_cannot_be_written_is_told_once_kept_and_bounded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dreamfleet.metrics.sinks.jsonl.KEPT_BYTES", 30)
    told: list[str] = []
    sink = JsonlSink(tmp_path / "metrics.jsonl", told.append)
    reader, writer = os.pipe()
    os.dup2(writer, sink._file.fileno())  # what is written there goes nowhere
    os.close(reader)
    os.close(writer)
    for step in range(10):
        sink.write({"step": step, "loss": 0.5})
    assert told == ["cannot write metrics.jsonl, training goes on and it is tried again: Broken pipe"]
    assert sink._rest == b'{"step": 0, "loss": 0.5}\n{"step": 1, "loss": 0.5}\n'
    sink.close()
