"""Environments that users bring, from a package of theirs, trained on by the command line alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from support.cli_fleet import dreamfleet
from support.wrapping_fakes import CROSSING

SMALL = ["replay.size=1e4", "replay.chunksize=64", "batch_size=2", "batch_length=8", "report_length=4"]
# One worker, so that all environments start at the same time and each has its part of the steps.
FLEET = ["run.steps=400", "run.envs=4", "run.envs_per_worker=4", "run.eval_envs=0", "run.train_ratio=1"]
QUIET = ["run.save_every=0", "run.log_every=1"]


def train(run: Path, *overrides: str) -> tuple[list[dict[str, Any]], set[str]]:
    """Trains to the end; returns the finished episodes and the names of all metrics."""
    result = dreamfleet(
        "train", "agent=random", *SMALL, *FLEET, *QUIET, *overrides, "--run-dir", str(run), timeout_s=90
    )
    assert result.returncode == 0, result.stderr
    *_, last = result.stderr.splitlines()
    assert last.startswith("done: step ")
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(row["train/updates"] for row in metrics if "train/updates" in row) > 5
    return [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()], set().union(*metrics)


@pytest.mark.parametrize(
    ("overrides", "length", "returns"),
    [
        pytest.param(["env=gym:CartPole-v1"], None, None, id="an unmodified CartPole"),
        pytest.param(["env=gym:CartPole-v1", "env.vector=true"], None, None, id="CartPole by make_vec"),
        pytest.param(
            ["env=user_package.robot:Robot", "run.steps=3000"],
            20,
            20,
            id="a Dict with image, vector and Discrete parts",
        ),
        pytest.param(["env=user_package.walks:truncating"], 15, None, id="a truncating environment"),
        pytest.param(["env=user_package.robot:Manipulator"], 20, 20, id="a MultiDiscrete action of unequal sizes"),
        pytest.param(
            ["env=user_package.robot:make_robot", "env.kwargs.length=7", "env.kwargs.joints=stiff"],
            7,
            7,
            id="a factory with arguments",
        ),
        pytest.param(["env=user_package.walks:several"], 15, None, id="a VectorEnv"),
        pytest.param(CROSSING, 6, 21, id="texts, sequences and two rewards"),
    ],
)
def test_a_users_environment_is_trained_on(
    tmp_path: Path, overrides: list[str], length: int | None, returns: float | None
) -> None:
    episodes, names = train(tmp_path, *overrides)
    assert {episode["env"] for episode in episodes} == {0, 1, 2, 3}
    for episode in episodes:
        assert episode["length"] == (length or episode["length"])
        assert episode["return"] == (returns or episode["return"])
        assert math.isfinite(episode["return"])
    if "CartPole" in overrides[0]:  # which pays one for every step
        assert all(episode["return"] == episode["length"] for episode in episodes)
    if "Robot" in overrides[0]:  # long enough for figures, which come about once a second
        assert {f"episode/log/energy/{name}" for name in ("avg", "max", "sum")} <= names
