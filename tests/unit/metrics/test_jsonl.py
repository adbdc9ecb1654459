"""Metrics as lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

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
