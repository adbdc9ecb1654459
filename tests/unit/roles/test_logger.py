"""The logger role's handlers, called directly."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import RoleContext, using_context
from dreamfleet.core.interfaces import Arrays
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.metrics.sinks.jsonl import JsonlSink
from dreamfleet.metrics.workers import WorkerMetrics
from dreamfleet.roles.connect import RUN_STEP, snapshot_request, write_interval_s
from dreamfleet.roles.logger import LoggerRole, close_s
from dreamfleet.transport.codec import pack_json, unpack_json


class Logging:
    """A logger role that writes into a folder, and what can be read there."""

    def __init__(self, folder: Path, now: Any = time.monotonic, **args: Any) -> None:
        self.folder = folder
        self.metrics_logger = MetricsLogger([JsonlSink(folder / "metrics.jsonl")])
        self.role = LoggerRole(self.metrics_logger, FleetArgs(logdir=folder, episode_timeout=60.0, **args), now)

    def metrics(self) -> list[dict[str, Any]]:
        self.role.write()
        return self._lines("metrics.jsonl")

    def episodes(self) -> list[dict[str, Any]]:
        return self._lines("episodes.jsonl")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture
def logging(tmp_path, manual_time):
    built = Logging(tmp_path, manual_time)
    yield built
    built.role._file.close()
    built.metrics_logger.close()


def tran(envs: list[int], rewards: list[float], kind: str = "") -> Arrays:
    return {
        "env": np.array(envs, np.int32),
        "reward": np.array(rewards, np.float32),
        "is_first": np.full(len(envs), "f" in kind),
        "is_last": np.full(len(envs), "l" in kind),
    }


def test_steps_count_rows_of_training_environments_only(logging) -> None:
    logging.role.tran(tran([0, 1, 2], [0, 0, 0], "f"))
    logging.role.tran_eval(tran([0, 1], [0, 0], "f"))
    logging.role.tran(tran([1], [1]))
    assert logging.metrics_logger.step == 4


def test_train_and_eval_episodes_are_logged_under_their_own_names(logging) -> None:
    logging.role.tran(tran([0, 1], [0, 0], "f"))
    logging.role.tran_eval(tran([0], [0], "f"))
    logging.role.tran_eval(tran([0], [100], "l"))
    logging.role.tran(tran([0, 1], [1, 3], "l"))
    (row,) = logging.metrics()
    del row["time"]
    assert row == {
        "step": 4,
        "episode/return": 2,
        "episode/length": 1,
        "eval/return": 100,
        "eval/length": 1,
    }


def test_every_finished_episode_has_a_line(logging) -> None:
    logging.role.tran(tran([3], [0], "f"))
    logging.role.tran(tran([3], [0.5]))
    before = time.time()
    logging.role.tran(tran([3], [0.25], "l"))
    logging.role.tran_eval(tran([0], [0], "f"))
    logging.role.tran_eval(tran([0], [9], "l"))
    first, second = logging.episodes()
    assert before <= first.pop("time") <= second.pop("time") <= time.time()
    assert first == {"step": 3, "mode": "train", "env": 3, "return": 0.75, "length": 2}
    assert second == {"step": 3, "mode": "eval", "env": 0, "return": 9, "length": 1}


def figures(worker: int, restarts: int, mode: str = "train", **changes: Any) -> Arrays:
    usage = {"cpu_percent": 25.0}
    quiet = {"steps": 0, "step_ms": 0.0, "slowest_ms": 0.0, "elapsed_s": 1.0, "logs": {}, "usage": usage}
    return {"json": pack_json({"worker": worker, "mode": mode, "restarts": restarts, **quiet, **changes})}


def test_figures_of_env_workers_become_metrics_of_the_fleet(logging) -> None:
    logging.role.add(figures(0, 1, steps=10, step_ms=30.0, slowest_ms=9.0, logs={"log/coins/avg": [6.0, 2]}))
    logging.role.add(figures(8, 2, steps=30, step_ms=10.0, slowest_ms=4.0, logs={"log/coins/avg": [9.0, 1]}))
    logging.role.add(figures(3, 0, "eval", logs={"log/coins/avg": [7.0, 1]}))
    (row,) = logging.metrics()
    del row["time"]
    assert row == {
        "step": 0,
        "env/restarts": 3,
        "env/step_ms/avg": 1.0,
        "env/step_ms/max": 9.0,
        "timer/env/step/count": 40,
        "timer/env/step/avg_ms": 1.0,
        "timer/env/step/total_s": 0.04,
        "timer/env/step/frac": pytest.approx(0.04 / 3),
        "usage/env/cpu_percent": 75.0,
        "env/workers": 3,
        "episode/log/coins/avg": 5.0,
        "eval/log/coins/avg": 7.0,
    }


def test_metrics_of_other_roles_are_averaged_under_their_prefix(logging) -> None:
    for loss in (1.0, 2.0):
        logging.role.add({"json": pack_json({"prefix": "train", "metrics": {"loss": loss}})})
    logging.role.add({"json": pack_json({"metrics": {"fps/env": 10}})})
    (row,) = logging.metrics()
    assert (row["train/loss"], row["fps/env"]) == (1.5, 10)


def test_sinks_get_the_distribution_of_returns_and_lengths_between_two_writes(tmp_path) -> None:
    rows: list[Any] = []
    sink = SimpleNamespace(write=rows.append, close=lambda: None)
    role = LoggerRole(MetricsLogger([sink]), FleetArgs(logdir=tmp_path))
    for value in (3, 5):
        role.tran(tran([0, 1], [0, 0], "f"))
        role.tran(tran([0, 1], [value, 10 * value], "l"))
    role.tran_eval(tran([0], [0], "f"))
    role.tran_eval(tran([0], [7], "l"))
    role.write()
    role.logger.add({"x": 1})
    role.write()
    first, second = rows
    assert first["episode/returns"].tolist() == [3, 30, 5, 50]
    assert first["episode/lengths"].tolist() == [1, 1, 1, 1]
    assert first["eval/returns"].tolist() == [7]
    assert "episode/returns" not in second
    role._file.close()


def test_what_the_role_and_its_machine_use_is_measured(logging) -> None:
    logging.role.measure({"tran/requests": 4, "tran/busy_s": 0.5, "malformed": 0})
    (row,) = logging.metrics()
    assert (row["timer/logger/tran/count"], row["timer/logger/tran/avg_ms"]) == (4, 125)
    assert row.keys() >= {"usage/logger/cpu_percent", "usage/logger/ram_gb", "usage/machine/disk_free_gb"}


def test_an_episode_that_was_interrupted_by_silence_is_dropped(logging, manual_time) -> None:
    logging.role.tran(tran([0], [0], "f"))
    manual_time.advance(61)
    logging.role.tran(tran([0], [1], "l"))
    assert logging.episodes() == []
    assert logging.role.episodes["train"].dropped == 1


def test_a_continued_run_counts_steps_on(logging, tmp_path) -> None:
    logging.role.tran(tran([0, 1], [0, 0], "f"))
    snapshots = Snapshots(tmp_path)
    snapshots.begin(2)
    logging.role.save(snapshot_request(2, snapshots.token))
    snapshots.commit(2, {"updates": 1})
    restored = Logging(tmp_path)
    restored.role.restore()
    assert restored.metrics_logger.step == 2
    restored.role._file.close()
    restored.metrics_logger.close()


def test_a_logger_with_a_run_folder_of_its_own_commits_its_own_part(logging, tmp_path) -> None:
    logging.role.tran(tran([0, 1], [0, 0], "f"))
    numbers = {**snapshot_request(2, "its token"), "step": np.array(2), "updates": np.array(1)}
    logging.role.save(numbers)
    logging.role.committed(numbers)
    assert Snapshots(tmp_path).manifest()["step"] == 2


def play(logging: Logging, returns: list[float]) -> None:
    """Episodes of two steps, with a line of metrics after each."""
    for value in returns:
        logging.role.tran(tran([0], [0], "f"))
        logging.role.tran(tran([0], [value], "l"))
        logging.metrics()


def save(logging: Logging, **manifest: int) -> Arrays:
    step = logging.metrics_logger.step
    snapshots = Snapshots(logging.folder)
    snapshots.begin(step)
    answer = logging.role.save(snapshot_request(step, snapshots.token))
    snapshots.commit(step, {"updates": 1, **manifest})
    return answer


def restored(tmp_path: Path, **args: Any) -> Logging:
    logging = Logging(tmp_path, **args)
    logging.role.restore()
    logging.role._file.close()
    logging.metrics_logger.close()
    return logging


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_what_is_known_of_episodes_continues_with_the_run(logging, tmp_path) -> None:
    play(logging, [1.0] * 12)
    logging.role.tran(tran([4, 5], [0, 0], "f"))
    logging.role.tran(tran([4], [7]))
    answer = save(logging)
    assert (answer["step"], answer["score"]) == (27, 1.0)
    again = Logging(tmp_path)
    again.role.restore()
    assert again.role.finished == {"train": 12, "eval": 0}
    assert again.role._recent == {"train": [1.0] * 12, "eval": []}
    assert list(again.role._towards_goal) == [1.0] * 12
    again.role.tran(tran([4], [2], "l"))  # the episode goes on
    again.role.tran(tran([5], [0], "f"))  # this one begins anew
    assert again.episodes()[-1]["return"] == 9
    assert again.episodes()[-1]["step"] == 28
    again.role._file.close()
    again.metrics_logger.close()


def test_a_few_episodes_are_no_score(logging) -> None:
    play(logging, [1.0] * 9)
    assert np.isnan(save(logging)["score"])


def test_lines_newer_than_the_snapshot_are_moved_aside(logging, tmp_path) -> None:
    play(logging, [1.0, 2.0])
    save(logging)
    play(logging, [3.0, 4.0])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "ti')  # killed while it wrote
    again = restored(tmp_path)
    assert again.metrics_logger.step == 4
    for name in ("metrics", "episodes"):
        assert steps_in(tmp_path / f"{name}.jsonl") == [2, 4]
        assert steps_in(tmp_path / f"{name}.lost.jsonl") == [6, 8]
    again = Logging(tmp_path)
    again.role.restore()
    play(again, [5.0])
    assert [(row["step"], row["return"]) for row in again.episodes()] == [(2, 1.0), (4, 2.0), (6, 5.0)]
    again.role._file.close()
    again.metrics_logger.close()


def test_the_step_is_that_of_the_snapshot_as_a_whole(logging, tmp_path) -> None:
    """The logger was asked a moment after replay, and two more steps had come."""
    play(logging, [1.0, 2.0])
    save(logging, step=2)
    assert restored(tmp_path).metrics_logger.step == 2
    assert steps_in(tmp_path / "metrics.jsonl") == [2]


def test_without_a_snapshot_everything_begins_anew(logging, tmp_path) -> None:
    play(logging, [1.0])
    assert restored(tmp_path).metrics_logger.step == 0
    assert steps_in(tmp_path / "metrics.jsonl") == []
    assert steps_in(tmp_path / "metrics.lost.jsonl") == [2]


def test_a_logger_that_is_restarted_alone_goes_on_where_its_lines_end(logging, tmp_path) -> None:
    play(logging, [1.0])
    save(logging)
    play(logging, [2.0, 3.0])
    again = restored(tmp_path, restarted="alone")
    assert again.metrics_logger.step == 6
    assert steps_in(tmp_path / "metrics.jsonl") == [2, 4, 6]
    assert not (tmp_path / "metrics.lost.jsonl").exists()
    again.role.tran({**tran([0], [0], "f"), RUN_STEP: np.array(20)})  # the actor knows of more steps than arrived here
    assert again.metrics_logger.step == 20
    assert restored(tmp_path, restarted="together").metrics_logger.step == 2


def test_an_episode_that_a_restarted_logger_knows_in_part_is_not_counted(logging, tmp_path) -> None:
    logging.role.tran(tran([0], [0], "f"))
    logging.role.tran(tran([0], [5000]))
    save(logging)
    again = Logging(tmp_path, restarted="alone")
    again.role.restore()
    again.role.tran(tran([0], [2], "l"))  # of another episode, whose beginning went to the logger before
    assert again.episodes() == []
    play(again, [3.0])
    assert [episode["return"] for episode in again.episodes()] == [3.0]
    again.role._file.close()
    again.metrics_logger.close()


class NoServer:
    def stats(self) -> dict[str, float]:
        return {}


def test_the_status_shows_the_mean_of_the_last_hundred_returns(logging) -> None:
    for value in range(150):
        logging.role.tran(tran([0], [0], "f"))
        logging.role.tran(tran([0], [value], "l"))
    status = logging.role.status(NoServer())  # type: ignore[arg-type]
    assert status["episodes"] == {"train": 150, "eval": 0}
    assert status["mean_return"] == {"train": 99.5}  # of 50 to 149
    assert status["last_return"] == {"train": 149}
    assert status["dropped"] == {"train": 0, "eval": 0}


@pytest.mark.parametrize(("log_every", "seconds"), [(0, None), (-1, 1), (0.1, 1), (120, 120)])
def test_how_often_metrics_are_written(log_every: float, seconds: float | None) -> None:
    assert write_interval_s(log_every) == seconds


def test_the_run_ends_once_the_last_training_episodes_reach_the_goal_on_average(tmp_path: Path) -> None:
    finished: list[str] = []
    context = RoleContext(report=SimpleNamespace(finish=finished.append))  # type: ignore[arg-type]
    with using_context(context):
        args = FleetArgs(logdir=tmp_path, goal=2.0, goal_episodes=3)
        metrics = MetricsLogger([JsonlSink(tmp_path / "metrics.jsonl")])
        role = LoggerRole(metrics, args)
    episodes = [(role.tran_eval, 9.0), (role.tran, 4.0), (role.tran, 0.0), (role.tran, 0.0), (role.tran, 6.0)]
    for add, reward in episodes:
        assert not finished
        add(tran([0], [0.0], "f"))
        add(tran([0], [reward], "l"))
    assert finished == ["run.goal=2 reached: the mean return of 3 episodes"]
    role._file.close()
    metrics.close()


@pytest.mark.parametrize(("allowed_s", "expected_s"), [(10.0, 5.0), (60.0, 30.0), (600.0, 60.0)])
def test_sinks_have_half_of_the_time_to_end_and_a_minute_at_most(allowed_s: float, expected_s: float) -> None:
    assert close_s(allowed_s) == expected_s


JUNK = (
    b"",
    b'{"worker": ',
    b"[" * 100_000,
    b"[]",
    b'"worker"',
    b"{}",
    b'{"worker": 1}',
    b'{"worker": 1, "mode": "train", "usage": 3}',
    b'{"metrics": [1, 2]}',
    b'{"metrics": {"x": 1}, "prefix": 3}',
    b'{"metrics": {"x": [[1], [2, 3]], "y": {"z": [{}]}, "z": null, "w": "text", "v": 1e999, "u": 1%s}}' % (b"0" * 400),
)


@pytest.mark.parametrize("text", JUNK)
def test_no_figures_end_the_logger(logging, text: bytes) -> None:
    logging.role.add({"json": np.frombuffer(text, np.uint8)})
    logging.role.add({"json": pack_json({"metrics": {"good": 3}})})
    assert logging.metrics()[-1]["good"] == 3


def test_figures_that_cannot_be_used_are_counted(logging) -> None:
    for _ in range(3):
        logging.role.add({"json": pack_json({"worker": 1})})
    assert logging.role.refused == 3


def test_figures_of_a_worker_are_not_taken_for_metrics_of_a_role(logging) -> None:
    message = unpack_json(figures(1, 0)["json"]) | {"metrics": {"loss": 1e9}, "prefix": "train"}
    logging.role.add({"json": pack_json(message)})
    assert logging.role.refused == 1
    logging.role.add({"json": pack_json({"metrics": {"good": 3}})})
    assert "train/loss" not in logging.metrics()[-1]


def test_no_metric_takes_the_place_of_the_step_or_the_time(logging) -> None:
    """With a step of 10**12 every later line would have looked older, and been moved aside after a restart."""
    logging.role.logger.step = 7
    logging.role.add({"json": pack_json({"metrics": {"step": 10**12, "time": 0, "loss": 2.0}})})
    (row,) = logging.metrics()
    assert (row["step"], row["loss"]) == (7, 2.0)
    assert row["time"] > 1e9


def test_the_names_of_one_worker_cannot_fill_the_memory() -> None:
    figures = WorkerMetrics()
    quiet = {"steps": 0, "step_ms": 0.0, "slowest_ms": 0.0, "elapsed_s": 1.0, "restarts": 0, "usage": {"odd": 1.0}}
    for start in range(0, 50_000, 5000):
        logs = {f"log/{number}": [1.0, 1] for number in range(start, start + 5000)}
        logs |= {"log/" + "x" * 1000: [1.0, 1], "log/\ud800": [1.0, 1]}
        figures.add({"worker": f"w{start}", "mode": "train", "logs": logs, **quiet})
    taken = figures.take()
    assert len([name for name in taken if name.startswith("episode/log/")]) == 10_000
    assert max(map(len, taken)) < 300
    assert not any(name.startswith("usage/") for name in taken)
