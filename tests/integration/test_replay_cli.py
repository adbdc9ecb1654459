"""`dreamfleet replay`: offline episodes on their way into training, and what a run's replay holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.envs.builtin.dummy import Dummy
from support.cli_fleet import dreamfleet

SMALL = ["batch_size=2", "batch_length=8", "report_length=4", "run.envs=2", "run.eval_envs=0"]
ENV = ["env.kwargs.length=29", "env.kwargs.size=4"]
EPISODES, LENGTH = 20, 30


@pytest.fixture(scope="module")
def episodes(tmp_path_factory) -> Path:
    """Recorded from the environment with the action that is rewarded only at times."""
    folder = tmp_path_factory.mktemp("episodes")
    for number in range(EPISODES):
        np.savez(folder / f"{number:02d}.npz", **record(number % 5))
    return folder


def record(chosen: int) -> dict[str, np.ndarray]:
    env = Dummy(length=29, size=4)
    action = {"action": np.int32(chosen), "reset": True}
    steps: list[dict[str, Any]] = []
    while not steps or not steps[-1]["is_last"]:
        steps.append({**env.step(action), "action": action["action"]})
        action = {**action, "reset": False}
    return {key: np.stack([step[key] for step in steps]) for key in steps[0]}


def info(run: Path) -> dict[str, Any]:
    result = dreamfleet("replay", "info", str(run), "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def expect_refused(*words: str) -> str:
    result = dreamfleet("replay", *words)
    assert result.returncode == 2
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_training_goes_on_from_imported_episodes(tmp_path, episodes):
    run = tmp_path / "run"
    result = dreamfleet("replay", "import", str(run), "agent=random", *SMALL, *ENV, "--from", f"{episodes}/*.npz")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"imported {EPISODES * LENGTH} steps of {EPISODES} episodes into {run}\n"
    before = info(run)
    assert (before["steps"], before["episodes"], before["streams"]) == (600, 20, 20)
    assert sum(before["returns"]["counts"]) == 20
    assert before["bytes_on_disk"] > 600 * 48
    trained = dreamfleet("train", "run.steps=1200", "run.train_ratio=8", "--run-dir", str(run))
    assert trained.returncode == 0, trained.stderr
    after = info(run)
    assert after["snapshot"] == f"{after['steps']:012d}"
    assert after["steps"] >= 1200
    assert after["streams"] == 22
    assert after["episodes"] > 20


def test_files_that_the_shell_has_expanded_are_all_imported(tmp_path, episodes):
    files = [str(path) for path in sorted(episodes.iterdir())]
    result = dreamfleet("replay", "import", str(tmp_path / "run"), "--from", *files, *SMALL, *ENV)
    assert result.returncode == 0, result.stderr
    assert info(tmp_path / "run")["episodes"] == EPISODES


def test_a_wrong_file_is_named_and_nothing_is_written(tmp_path, episodes):
    bad = tmp_path / "bad.npz"
    np.savez(bad, **{**record(0), "vector": np.zeros((30, 3), np.float32)})
    words = ["import", str(tmp_path / "run"), *SMALL, *ENV, "--from", f"{episodes}/0*.npz", "--from", str(bad)]
    message = expect_refused(*words)
    assert f"{bad}: 'vector' has shape (30, 3) instead of (30, 5)" in message
    assert not list((tmp_path / "run").glob("snapshots/*"))
    assert not (tmp_path / "run" / "replay").exists()


def test_episodes_that_do_not_fit_are_refused_and_leave_nothing(tmp_path, episodes):
    small = ["replay.size=100", "batch_size=2"]
    message = expect_refused("import", str(tmp_path), *SMALL, *ENV, *small, "--from", f"{episodes}/*.npz")
    assert "only 100 of the 440 windows of 20 episodes fit: set a larger replay.size" in message
    assert not (tmp_path / "replay").exists()


def test_episodes_shorter_than_a_sample_are_refused(tmp_path, episodes):
    message = expect_refused("import", str(tmp_path), *ENV, "--from", f"{episodes}/*.npz")
    assert "no episode has the 65 steps of one sample: set a smaller batch_length" in message


def test_a_pattern_without_a_file_is_refused(tmp_path):
    assert "no file matches --from 'none/*.npz'" in expect_refused("import", str(tmp_path), "--from", "none/*.npz")


def test_a_run_that_has_a_snapshot_takes_no_import(tmp_path, episodes):
    words = ["import", str(tmp_path), *SMALL, *ENV, "--from", f"{episodes}/*.npz"]
    assert dreamfleet("replay", *words).returncode == 0
    assert "holds a snapshot already" in expect_refused(*words)


def test_a_folder_without_a_snapshot_has_no_replay_to_show(tmp_path):
    assert "holds no snapshot" in expect_refused("info", str(tmp_path))


def test_info_is_a_table_for_people(tmp_path, episodes):
    dreamfleet("replay", "import", str(tmp_path), *SMALL, *ENV, "--from", f"{episodes}/*.npz")
    lines = dreamfleet("replay", "info", str(tmp_path)).stdout.splitlines()
    assert lines[0].split() == ["snapshot", "000000000600"]
    assert lines[1].split() == ["steps", "600", "eval", "0"]
    assert lines[5].startswith("returns from ")
    assert len(lines) == 6 + 10


def test_a_run_that_would_not_fit_is_refused_before_it_starts(tmp_path):
    result = dreamfleet("train", "agent=random", "env=dummy", "replay.size=1e9", "--run-dir", str(tmp_path))
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "replay.size=1e9 needs " in result.stderr
    assert "are free: set replay.size_bytes or a smaller replay.size" in result.stderr
