"""Shows a run on the terminal: a progress bar where there is one, a line now and then where the output is a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LINE_EVERY_S = 5.0
ENDLESS = 10**10  # the default of run.steps: no share of it is worth showing


class Progress:
    def __init__(self, steps: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._total = None if steps >= ENDLESS else steps
        self._next_line = 0.0
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),  # all of it fits 80 columns
            TextColumn("{task.completed:.0f}/{task.total:.0f}" if self._total else "{task.completed:.0f}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[summary]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=self._total, summary="")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, status: Mapping[str, Any]) -> None:
        """Takes a status as the supervisor writes it, about once a second."""
        step, summary = summarize(status)
        self._bar.update(self._task, completed=step, description=str(status["state"]), summary=summary)
        ended = status["state"] in ("done", "failed")
        if not self._console.is_terminal and (ended or time.monotonic() >= self._next_line):
            self._next_line = time.monotonic() + LINE_EVERY_S
            total = f"/{self._total}" if self._total else ""
            self._console.print(f"{status['state']}: step {step}{total}  {summary}".rstrip(), soft_wrap=True)


def summarize(status: Mapping[str, Any]) -> tuple[int, str]:
    """The step reached and the few numbers a person wants first."""
    roles = {name: role.get("status") or {} for name, role in status.get("roles", {}).items()}
    actor = roles.get("agent", {}).get("actor", {})
    learner = roles.get("agent", {}).get("learner", {})
    logger = roles.get("logger", {})
    parts = []
    if "env" in actor.get("rates", {}):
        parts.append(f"{actor['rates']['env']:.0f} steps/s")
    if learner.get("updates"):
        parts.append(f"{learner['updates']} updates")
    if logger.get("episodes", {}).get("train"):
        parts.append(f"return {logger['mean_return']['train']:.1f}")
    return int(actor.get("step", 0)), "  ".join(parts)
