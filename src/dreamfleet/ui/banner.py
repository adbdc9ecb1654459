"""The banner at the start of a run: task, agent, train ratio and folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from dreamfleet.core.text.formatting import count, duration, nbytes, plural, short_count
from dreamfleet.ui.format import update_pace
from dreamfleet.ui.run_summary import ENDLESS

Line = tuple[str, str]  # title and text


def start_lines(run: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines that are known before the first process starts. Skip missing fields of `run`."""
    if "task" in run:
        more = f", {count(run['eval_envs'])} for evaluation" if run["eval_envs"] else ""
        yield "task", f"{run['task']}: {plural(run['envs'], 'environment')}{more}"
    if run.get("workers"):
        calls = f"up to {plural(run['actor_rows'], 'environment')} a policy call"
        yield "fleet", f"{plural(run['workers'], 'env worker')}, {calls}, {run['batches_ahead']} batches ahead"
    for key, title in (("obs", "sees"), ("act", "acts")):
        for number, space in enumerate(run.get(key, ())):
            yield title if number == 0 else "", space
    if run.get("agent"):
        devices = f", on {run['devices']}" if "devices" in run else ""
        yield "agent", f"{run['agent']}, seed {run['seed']}{devices}"
    if "batch_steps" in run:
        yield "learns", _learning(run)
    if "memory_bytes" in run:
        takes = f"{nbytes(run['memory_bytes'])} of memory, {nbytes(run['disk_bytes'])} of disk"
        yield "replay", f"up to {takes} ({nbytes(run['memory_free'])}, {nbytes(run['disk_free'])} free)"
    if "folder" in run:
        folder = shlex.quote(run["folder"])
        yield "folder", run["folder"] + (f", resumed at step {count(run['before'])}" if run.get("before") else "")
        yield "watch", f"dreamfleet status {folder} --watch"
        if run.get("tensorboard"):
            yield "", f"tensorboard --logdir {folder}"


def agent_lines(about: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines that only the agent's process knows."""
    total = about.get("parameters")
    if total:
        parts = ", ".join(f"{name} {short_count(number)}" for name, number in about.get("parts", {}).items())
        yield "agent", f"{count(total)} parameters" + (f" ({parts})" if parts else "")
    if about.get("devices"):
        compiled = about.get("compile_s")
        yield "", f"on {about['devices']}" + (f", compiled in {duration(compiled)}" if compiled else "")


def banner_row(line: Line) -> RenderableType:
    """Format a line for a terminal. Long text wraps with an indent."""
    name, words = line
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", width=8)
    grid.add_column(overflow="fold")
    grid.add_row(name, words)
    return grid


def _learning(run: Mapping[str, Any]) -> str:
    pace = update_pace(run["batch_steps"], run["train_ratio"])
    steps, ratio = run["steps"], run["train_ratio"]
    if steps >= ENDLESS:
        limit = f", for {duration(run['duration'])}" if run.get("duration") else ", no time limit"
        return pace + limit
    updates = f", {plural(int(steps * ratio / run['batch_steps']), 'update')} in all" if ratio > 0 else ""
    return f"{pace}{updates}"
