"""Real runs with `run.script=single`: equal to the bit, whether they are stopped on the way or not."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from support import counting, single_runs
from support.cli_fleet import CliFleet, dreamfleet, expect_nothing_left
from support.fleet_probe import events_of

RANDOM = [
    "env=memory",
    "run.script=single",
    "run.envs=3",
    "run.eval_envs=2",
    "run.log_every_steps=300",
    "run.report_every_steps=600",
    "logger.sinks=[]",
]
EVERY = 300
TOO_MANY = "run.steps=1e6"


def train(run: Path, *overrides: str, timeout_s: float = 100.0) -> None:
    with CliFleet(run, *RANDOM, *overrides) as fleet:
        code, printed = fleet.finish(timeout_s)
    assert code == 0, printed


def interrupt(run: Path, step: int, number: signal.Signals) -> None:
    """Stops a run at whatever step it has come to, from `step` on and once it has begun."""
    begun = len(events_of(run, "ready"))
    with CliFleet(run, *RANDOM, TOO_MANY) as fleet:
        fleet.wait(lambda: len(events_of(run, "ready")) > begun and fleet.step() >= step, f"step {step}", 60.0)
        pids, sockets = [process.pid for process in fleet.processes()], fleet.sockets()
        code, printed = fleet.stop(number)
    assert code == 130, printed
    expect_nothing_left(pids, sockets)


def test_a_run_that_was_interrupted_twice_equals_one_that_was_not(tmp_path):
    interrupt(tmp_path / "stopped", 400, signal.SIGTERM)
    interrupt(tmp_path / "stopped", 0, signal.SIGINT)
    (first, *_) = [row["step"] for row in single_runs.rows(tmp_path / "stopped", "metrics.jsonl")]
    steps = 3 * (single_runs.rows(tmp_path / "stopped", "episodes.jsonl")[-1]["step"] // 3 + 500)
    for run in ("stopped", "straight"):
        train(tmp_path / run, f"run.steps={steps}")
    assert first == EVERY
    assert len(events_of(tmp_path / "stopped", "restore")) == 2
    assert single_runs.updates(tmp_path / "straight") > 100
    single_runs.expect_equal(tmp_path / "straight", tmp_path / "stopped", EVERY)


def test_another_seed_is_another_run(tmp_path):
    for seed in (0, 1):
        train(tmp_path / str(seed), f"seed={seed}", "run.steps=600")
    one, other = (single_runs.rows(tmp_path / str(seed), "episodes.jsonl") for seed in (0, 1))
    assert one != other


def test_saves_and_reports_change_nothing_that_is_trained_on(tmp_path):
    train(tmp_path / "never", "run.report_every_steps=0", "run.save_every=0", "run.steps=900")
    train(tmp_path / "often", "run.report_every_steps=300", "run.save_every=0.05", "run.steps=900")
    assert len(events_of(tmp_path / "often", "snapshot")) > 1
    assert single_runs.digest(tmp_path / "never") == single_runs.digest(tmp_path / "often")
    never, often = (single_runs.rows(tmp_path / run, "metrics.jsonl") for run in ("never", "often"))
    assert [row["train/reward"] for row in never] == [row["train/reward"] for row in often]
    assert len(never) == 3


def test_the_counting_agent_sees_every_step_once_and_in_order(tmp_path):
    agent = counting.run_fleet(tmp_path, script="single", log_every_steps=500, report_every_steps=500)
    counting.expect_complete(agent)
    assert agent["eval_steps"] > 0


def test_commands_know_a_run_in_one_process(tmp_path):
    train(tmp_path, "run.steps=600")
    status = json.loads((tmp_path / "status.json").read_text())
    assert {"agent", "replay", "logger", "env-0", "eval-0"} == set(status["roles"])
    assert status["pace"]["step"] == 600
    assert status["pace"]["updates"] == single_runs.updates(tmp_path)
    shown = dreamfleet("status", str(tmp_path), "--json")
    assert json.loads(shown.stdout)["step"] == 600, shown.stderr
    played = dreamfleet("eval", str(tmp_path), "--episodes", "2", "--json")
    assert len(json.loads(played.stdout)["returns"]) == 2, played.stderr


def test_a_fleet_can_go_on_with_it_but_not_the_other_way_round(tmp_path):
    train(tmp_path, "run.steps=300")
    train(tmp_path, "run.steps=600", "run.script=parallel")
    refused = dreamfleet("train", "run.script=single", "run.steps=900", "--run-dir", str(tmp_path))
    assert refused.returncode == 2
    assert "go on with run.script=parallel, or choose another --run-dir" in refused.stderr
    assert int(single_runs.arrays_of(tmp_path, "logger")["step"]) >= 600


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run.train_ratio=0", "set run.train_ratio above 0"),
        ("run.remote_envs=true", "is not supported with run.script=single: remove one of them"),
        ("run.report_every_steps=100", "must be a multiple of run.log_every_steps"),
    ],
)
def test_what_has_no_place_in_one_process_is_refused(tmp_path, override, words):
    refused = dreamfleet("train", "run.script=single", override, "--run-dir", str(tmp_path))
    assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
