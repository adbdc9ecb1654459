"""Figures of env workers, from messages as they send them."""

from __future__ import annotations

from typing import Any

from dreamfleet.metrics.workers import WorkerFigures


def message(worker: object, restarts: int = 0, mode: str = "train", **changes: Any) -> dict[str, Any]:
    quiet = {"steps": 0, "step_ms": 0.0, "slowest_ms": 0.0, "logs": {}}
    return {"worker": worker, "mode": mode, "restarts": restarts, **quiet, **changes}


def test_restarts_are_the_sum_of_the_newest_count_of_every_worker() -> None:
    figures = WorkerFigures()
    for sent in (message(0, 1), message(4, 10), message(0, 2), message("eval", 5, "eval")):
        figures.add(sent)
    assert figures.take() == {"env/restarts": 17}
    figures.add(message(4, 11))
    assert figures.take() == {"env/restarts": 18}


def test_step_times_are_weighed_by_steps_and_begin_anew_with_every_take() -> None:
    figures = WorkerFigures()
    figures.add(message(0, steps=1, step_ms=10.0, slowest_ms=10.0))
    figures.add(message(4, steps=9, step_ms=10.0, slowest_ms=3.0))
    assert figures.take() == {"env/restarts": 0, "env/step_ms/avg": 2.0, "env/step_ms/max": 10.0}
    figures.add(message(4, steps=2, step_ms=2.0, slowest_ms=1.5))
    assert figures.take() == {"env/restarts": 0, "env/step_ms/avg": 1.0, "env/step_ms/max": 1.5}


def test_logs_are_averaged_over_episodes_of_their_mode() -> None:
    figures = WorkerFigures()
    figures.add(message(0, logs={"log/x/sum": (8.0, 4)}))
    figures.add(message(4, logs={"log/x/sum": (12.0, 1), "log/y/max": (3.0, 1)}))
    figures.add(message(0, mode="eval", logs={"log/x/sum": (5.0, 1)}))
    taken = figures.take()
    del taken["env/restarts"]
    assert taken == {"episode/log/x/sum": 4.0, "episode/log/y/max": 3.0, "eval/log/x/sum": 5.0}


def test_there_is_nothing_to_write_while_no_worker_sends() -> None:
    figures = WorkerFigures()
    assert figures.take() == {}
    figures.add(message(0, 3))
    figures.take()
    assert figures.take() == {}
