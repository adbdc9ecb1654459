"""Train an agent with the fleet of a configuration, and return the result to Python callers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dreamfleet.config.load import parse_overrides
from dreamfleet.config.schema import Config
from dreamfleet.config.syntax import dump_inline
from dreamfleet.core.errors import ConfigError
from dreamfleet.launch import factories, launcher
from dreamfleet.launch.import_name import expect_user_process, name_of
from dreamfleet.launch.worker_size import fleet_args
from dreamfleet.runs.resume import continued_config
from dreamfleet.supervision.exit_codes import EXIT_DONE
from dreamfleet.ui.progress import Progress

Given = Config | Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True)
class TrainResult:
    exit_code: int  # 0 done, 1 a role failed, 130 interrupted
    run_dir: Path
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)  # the newest value of each

    @property
    def ok(self) -> bool:
        return self.exit_code == EXIT_DONE


def run_training(
    given: Given,
    run_dir: Path,
    env: str | Callable[..., Any] | None = None,
    agent: str | Callable[..., Any] | None = None,
    quiet: bool = False,
) -> TrainResult:
    expect_user_process()
    named = [f"{kind}={name_of(value, kind)}" for kind, value in (("env", env), ("agent", agent)) if value is not None]
    folder = run_dir.absolute()  # an environment may take this process to another one
    result = read_result(run_config(_resolve(given, named, folder), folder, quiet), folder)
    return replace(result, run_dir=run_dir)


def run_config(config: Config, run_dir: Path, quiet: bool = False) -> int:
    """Run the fleet until it ends, show its progress on the terminal, and return the exit code."""
    run_dir = run_dir.absolute()
    factories.check_names(config)
    args = fleet_args(config, run_dir)
    with Progress(quiet=quiet) as progress:
        return launcher.run_fleet(factories.make_factories(config, run_dir), args, progress.show, config)


def read_result(code: int, run_dir: Path) -> TrainResult:
    metrics: dict[str, float] = {}
    path = run_dir / "metrics.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            metrics.update(json.loads(line))
        except ValueError:  # the last line of a run that was killed
            sys.stderr.write(f"{path}: a line is damaged and left out\n")
    return TrainResult(code, run_dir, int(metrics.get("step", 0)), metrics)


def _resolve(given: Given, named: list[str], run_dir: Path) -> Config:
    """Resolve the configuration. Apply the environment and agent first, because a new name resets its group."""
    if isinstance(given, Config):
        return parse_overrides(named, given)
    if isinstance(given, str):
        raise ConfigError(f"config={given!r}: pass a list of such words, {[given]!r}")
    words = [f"{key}={dump_inline(value)}" for key, value in given.items()] if isinstance(given, Mapping) else [*given]
    return continued_config(run_dir, [*named, *words])
