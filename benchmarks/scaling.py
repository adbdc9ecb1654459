"""How the whole system scales: one setting is swept, everything else stays as given.

    python benchmarks/scaling.py --sweep envs [--values 1 4 16 64 256] [--seconds 15] [--json] env=dummy agent=random
    python benchmarks/scaling.py quickstart --sweep ratio --values 4 16 64 run.goal=null

Each value is a run of its own, measured by `benchmarks/system.py`, and told on the standard error at once, so that a
sweep that is cut short was not for nothing. The last column of the table compares with the first value: what there is
twice as much of may at best bring twice as much.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import system
from dreamfleet.config.load import parse_overrides
from dreamfleet.supervision.machine import usable_cores


@dataclass(frozen=True)
class Sweep:
    key: str  # of the configuration; empty: no key, the machine is what changes
    values: tuple[Any, ...]
    measured: str  # the figure that is compared


SWEEPS = {
    "envs": Sweep("run.envs", (1, 2, 4, 8, 16, 32, 64, 128, 256), "env_steps_per_s"),
    "cores": Sweep("", (1, 2, 4, 8, 16), "env_steps_per_s"),
    "ratio": Sweep("run.train_ratio", (1, 4, 16, 32, 64, 128, 256), "updates_per_s"),
    "replay": Sweep("replay.size", (10_000, 30_000, 100_000), "replay_gb"),
    "size": Sweep("agent.size", ("size1m", "size12m", "size50m", "size200m"), "updates_per_s"),
}
SHOWN = ("env_steps_per_s", "updates_per_s", "learner_waiting", "rows_per_policy_call", "action_p50_ms", "replay_gb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", choices=SWEEPS, required=True)
    parser.add_argument("--values", nargs="+", help="instead of the usual ones")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options, words = parser.parse_known_args()
    sweep = SWEEPS[options.sweep]
    values = cut_words(options.values, words) if options.values else list(sweep.values)
    if options.sweep == "cores":
        values = [value for value in values if int(value) <= usable_cores()]
    rows = [measure(sweep, value, words, options.seconds) for value in values]
    for row in rows:
        row["of_first"] = round(row[sweep.measured] / rows[0][sweep.measured], 3) if rows[0][sweep.measured] else None
    command = " ".join(["python benchmarks/scaling.py", *sys.argv[1:]])
    found = {"command": command, "sweep": options.sweep, "measured": sweep.measured, "rows": rows}
    print(json.dumps(found) if options.json else table(options.sweep, rows))


def cut_words(values: list[str], words: list[str]) -> list[str]:
    """KEY=VALUE may follow the values, and is none; presets come before the options."""
    own = [value for value in values if "=" not in value]
    words.extend(value for value in values if "=" in value)
    return own


def measure(sweep: Sweep, value: Any, words: list[str], seconds: float) -> dict[str, Any]:
    print(f"{sweep.key or 'cores'}={value}", file=sys.stderr, flush=True)
    changed = [f"{sweep.key}={value}"] if sweep.key else []
    with on_cores(int(value)) if not sweep.key else on_cores(None):
        result = system.measure(parse_overrides([*words, *changed]), seconds)
    row = {"value": value, **result}
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


@contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    """Processes that are started meanwhile inherit it."""
    all_cores = os.sched_getaffinity(0)
    if count:
        os.sched_setaffinity(0, sorted(all_cores)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cores)


def table(name: str, rows: list[dict[str, Any]]) -> str:
    lines = ["  ".join(f"{title:>20}" for title in (name, *SHOWN, "of the first"))]
    lines += ["  ".join(f"{row[key]!s:>20}" for key in ("value", *SHOWN, "of_first")) for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
