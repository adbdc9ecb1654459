"""The list of runs: each one's name, command and expected duration."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dreamfleet.commands.reproduce.command import make_plan
from dreamfleet.core.errors import BadInput

ROW_KEYS = {"suite", "tasks", "size", "seeds", "frames", "words", "minutes"}
# Throughput gained by four runs side by side on one GPU, measured on an H200 with
# size12m; other counts are interpolated.
GAINED_BY_FOUR = 0.4


@dataclass(frozen=True)
class Run:
    suite: str
    task: str
    size: str
    seed: int
    env: str  # as the configuration names it
    frames: int  # of the environment
    steps: int  # of the agent
    command: tuple[str, ...]  # what follows `dreamfleet train`
    minutes: float  # alone on its machine

    @property
    def name(self) -> str:
        return f"{self.suite}-{self.task}-{self.size}-seed{self.seed}"


def load_runs(path: Path) -> list[Run]:
    """Return the runs in order of first mention. Raises `BadInput` for one that breaks its suite's protocol."""
    try:
        found = yaml.safe_load(path.read_text())
        runs = [run for row in found["runs"] for run in _runs_of(row, found.get("words", []))]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise BadInput(f"cannot read the list of runs {path}: {error}") from error
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.name, run)
    return list(first.values())


def _runs_of(row: Mapping[str, Any], common: list[str]) -> Iterable[Run]:
    if unknown := set(row) - ROW_KEYS:
        raise BadInput(
            f"unknown key {sorted(unknown)[0]!r} in the list of runs: it takes {', '.join(sorted(ROW_KEYS))}"
        )
    words = [row["size"], *common, *row.get("words", [])]
    for seed in row["seeds"]:
        for task in row["tasks"]:
            plan = make_plan(row["suite"], task, words, 1, row.get("frames"), Path("unused"))
            yield Run(
                suite=row["suite"],
                task=task,
                size=row["size"],
                seed=int(seed),
                env=plan.env,
                frames=plan.frames,
                steps=plan.steps,
                command=tuple(plan.overrides(int(seed))),
                minutes=float(row["minutes"]),
            )


def expected_minutes(run: Run, at_once: int, results: Iterable[Mapping[str, Any]]) -> float:
    """Return how long a run takes beside `at_once - 1` others, from earlier results of its kind where there are any."""
    like = [result for result in results if (result["suite"], result["size"]) == (run.suite, run.size)]
    same = [result["minutes"] for result in like if result["at_once"] == at_once]
    if same:
        return statistics.median(same)
    alone = [result["minutes"] / slowdown(result["at_once"]) for result in like]
    return (statistics.median(alone) if alone else run.minutes) * slowdown(at_once)


def slowdown(at_once: int) -> float:
    return at_once / (1 + GAINED_BY_FOUR * (at_once - 1) / 3)
