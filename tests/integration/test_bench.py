"""`dreamfleet bench` on fleets of which one stage is slow: it names that one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dreamfleet.commands.bench.command import Bench, bench
from dreamfleet.config.load import parse_overrides
from dreamfleet.config.schema import Config
from dreamfleet.core.factories import Factories
from dreamfleet.launch import factories
from support.cli_fleet import TESTS, dreamfleet
from support.slow_parts import SlowInsert, SlowSample, make_slow_replay

SMALL = [
    "replay.size=1e5",
    "batch_size=2",
    "batch_length=8",
    "report_length=4",
    "run.log_every=1",
    "run.envs=4",
    "run.eval_envs=0",
    "run.train_ratio=4",
    "logger.sinks=[]",
]
QUICK = ["env=support.user_envs:Tiny", "agent=random"]


def test_a_short_run_prints_its_figures_and_leaves_nothing_behind(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ended = dreamfleet("bench", *SMALL, "env=support.slow_parts:SlowEnv", "agent=random", "--seconds", "1", "--json")
    assert ended.returncode == 0, ended.stderr
    measurements = json.loads(ended.stdout)
    assert measurements["binding"] == "environments"
    assert measurements["env_steps_per_s"] > 0
    assert measurements["updates_per_s"] > 0
    assert list(tmp_path.iterdir()) == []


def slow_replay(kind: Any, config: Config, folder: Path) -> Factories:
    made = factories.make_factories(config, folder)
    return replace(made, make_replay_train=partial(make_slow_replay, kind, config, folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "replay", "expected"),
    [
        (["env=support.slow_parts:SlowEnv", "agent=random"], None, "environments"),
        (["env=support.user_envs:Tiny", "agent=support.slow_parts:SlowPolicy"], None, "policy"),
        (["env=support.user_envs:Tiny", "agent=support.slow_parts:SlowTrain"], None, "learner"),
        (QUICK, SlowSample, "replay"),
        (QUICK, SlowInsert, "replay"),
    ],
    ids=["environment", "policy", "learner", "sampling", "inserting"],
)
def test_bench_names_the_stage_that_is_slow(monkeypatch, overrides: list[str], replay: Any, expected: str) -> None:
    monkeypatch.setattr(sys, "path", [str(TESTS), *sys.path])
    config = parse_overrides([*SMALL, *overrides])
    measured = bench(config, 3.0, make_factories=partial(slow_replay, replay) if replay else None)
    assert isinstance(measured, Bench)
    assert measured.bottlenecks[0].stage == expected, measured.to_json()
