"""Figures of env workers, from messages as they send them."""

from __future__ import annotations

from typing import Any

from dreamfleet.metrics.workers import WorkerMetrics


def message(worker: object, restarts: int = 0, mode: str = "train", **changes: Any) -> dict[str, Any]:
    quiet = {"steps": 0, "step_ms": 0.0, "slowest_ms": 0.0, "elapsed_s": 1.0, "logs": {}, "usage": {}}
    return {"worker": worker, "mode": mode, "restarts": restarts, **quiet, **changes}


def only(part: str, metrics: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if key.startswith(part)}


def test_restarts_are_the_sum_of_the_newest_count_of_every_worker() -> None:
    figures = WorkerMetrics()
    for sent in (message(0, 1), message(4, 10), message(0, 2), message("eval", 5, "eval")):
        figures.add(sent)
    assert figures.take() == {"env/restarts": 17, "env/workers": 3}
    figures.add(message(4, 11))
    assert figures.take() == {"env/restarts": 18, "env/workers": 3}


def test_step_times_are_weighed_by_steps_and_begin_anew_with_every_take() -> None:
    figures = WorkerMetrics()
    figures.add(message(0, steps=1, step_ms=10.0, slowest_ms=10.0))
    figures.add(message(4, steps=9, step_ms=10.0, slowest_ms=3.0))
    assert only("env/step", figures.take()) == {"env/step_ms/avg": 2.0, "env/step_ms/max": 10.0}
    figures.add(message(4, steps=2, step_ms=2.0, slowest_ms=1.5))
    assert only("env/step", figures.take()) == {"env/step_ms/avg": 1.0, "env/step_ms/max": 1.5}


def test_the_time_inside_of_steps_is_a_share_of_all_workers_time() -> None:
    figures = WorkerMetrics()
    figures.add(message(0, steps=100, step_ms=500.0, elapsed_s=1.0))
    figures.add(message(4, steps=100, step_ms=300.0, elapsed_s=3.0))
    assert only("timer/", figures.take()) == {
        "timer/env/step/count": 200,
        "timer/env/step/avg_ms": 4.0,
        "timer/env/step/total_s": 0.8,
        "timer/env/step/frac": 0.2,
    }


def test_usage_is_the_sum_over_the_workers_that_are_there(manual_time) -> None:
    figures = WorkerMetrics(manual_time)
    figures.add(message(0, usage={"cpu_percent": 90.0, "ram_gb": 0.5}))
    figures.add(message(4, usage={"cpu_percent": 50.0, "ram_gb": 0.25}))
    taken = figures.take()
    assert only("usage/", taken) == {"usage/env/cpu_percent": 140.0, "usage/env/ram_gb": 0.75}
    assert taken["env/workers"] == 2
    manual_time.advance(4)
    figures.add(message(4, usage={"cpu_percent": 60.0, "ram_gb": 0.25}))
    assert figures.take()["usage/env/cpu_percent"] == 150.0
    manual_time.advance(4)
    figures.add(message(4, usage={"cpu_percent": 70.0, "ram_gb": 0.25}))
    taken = figures.take()
    assert (taken["usage/env/cpu_percent"], taken["env/workers"]) == (70.0, 1)


def test_logs_are_averaged_over_episodes_of_their_mode() -> None:
    figures = WorkerMetrics()
    figures.add(message(0, logs={"log/x/sum": (8.0, 4)}))
    figures.add(message(4, logs={"log/x/sum": (12.0, 1), "log/y/max": (3.0, 1)}))
    figures.add(message(0, mode="eval", logs={"log/x/sum": (5.0, 1)}))
    taken = figures.take()
    assert only("episode/", taken) | only("eval/", taken) == {
        "episode/log/x/sum": 4.0,
        "episode/log/y/max": 3.0,
        "eval/log/x/sum": 5.0,
    }


def test_only_known_usage_of_a_bounded_number_of_workers_is_kept(manual_time, monkeypatch) -> None:
    """30 messages with invented workers and figures kept 189 MB."""
    monkeypatch.setattr("dreamfleet.metrics.workers.MAX_WORKERS", 20)
    figures = WorkerMetrics(manual_time)
    invented = {f"usage{number}": 1.0 for number in range(1000)}
    for worker in range(30):
        figures.add(message(f"invented{worker}", 1, usage={"ram_gb": 1.0, **invented}))
    assert {key for _, usage in figures._usage.values() for key in usage} == {"ram_gb"}
    assert figures.take() == {"usage/env/ram_gb": 20.0, "env/workers": 20, "env/restarts": 20}
    manual_time.advance(6)
    figures.add(message("honest"))
    assert list(figures._usage) == ["honest"]  # already before anybody takes them


def test_there_is_nothing_to_write_while_no_worker_sends() -> None:
    figures = WorkerMetrics()
    assert figures.take() == {}
    figures.add(message(0, 3))
    figures.take()
    assert figures.take() == {}
