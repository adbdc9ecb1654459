"""The program that chaos is done to: `dreamfleet train`, with a replay and a record of metrics that can raise errors.

python -m chaos_program KEY=VALUE ... --run-dir DIR
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from functools import partial
from pathlib import Path

from dreamfleet.config.schema import Config
from dreamfleet.core.context import current_context
from dreamfleet.launch import factories as build
from dreamfleet.launch import launcher
from dreamfleet.launch.replay_options import replay_options
from dreamfleet.launch.worker_size import fleet_args
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.metrics.sinks.catalog import make_sinks
from dreamfleet.metrics.sinks.jsonl import JsonlSink
from dreamfleet.runs.resume import continued_config
from support import raising


def make_replay(config: Config, run: Path) -> raising.Replay:
    return raising.Replay(replay_options(config, run, "train"))


def make_logger(config: Config, run: Path) -> MetricsLogger:
    warn = current_context().warn
    isolated = make_sinks(config.logger.sinks, run, config.model_dump(), config.logger.keep_videos, warn)
    return MetricsLogger([JsonlSink(run / "metrics.jsonl", warn), raising.Sink()], isolated=isolated)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--run-dir", type=Path, required=True)
    options = parser.parse_args()
    run = options.run_dir.absolute()
    config = continued_config(run, options.words)
    factories = dataclasses.replace(
        build.make_factories(config, run),
        make_replay_train=partial(make_replay, config, run),
        make_logger=partial(make_logger, config, run),
    )
    return launcher.run_fleet(factories, fleet_args(config, run), config=config)


if __name__ == "__main__":
    sys.exit(main())
