"""What a person sees of a run."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from dreamfleet.launch.progress import ENDLESS, LINE_EVERY_S, Progress, summarize


def make_status(state: str = "running") -> dict[str, Any]:
    return {
        "state": state,
        "roles": {
            "agent": {
                "status": {
                    "actor": {"step": 12_000, "rates": {"env": 345.6, "policy": 20.0}},
                    "learner": {"updates": 78},
                }
            },
            "logger": {"status": {"episodes": {"train": 9, "eval": 0}, "mean_return": {"train": 3.25}}},
            "replay": {"status": None},
        },
    }


def test_the_summary_holds_the_step_and_a_few_numbers() -> None:
    assert summarize(make_status()) == (12_000, "346 steps/s  78 updates  return 3.2")


def test_a_fleet_that_only_starts_has_nothing_to_show() -> None:
    assert summarize({"state": "starting"}) == (0, "")
    assert summarize({"state": "starting", "roles": {"agent": {"status": None}}}) == (0, "")


def show(statuses: list[dict[str, Any]], steps: int = 20_000, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    with Progress(steps, console) as progress:
        for status in statuses:
            progress.show(status)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_into_a_file_goes_a_line_now_and_then_and_one_at_the_end() -> None:
    printed = show([make_status()] * 50 + [make_status("done")])
    assert LINE_EVERY_S > 1  # so that the fifty at once make one line
    assert printed.splitlines() == [
        f"{state}: step 12000/20000  346 steps/s  78 updates  return 3.2" for state in ("running", "done")
    ]


def test_an_endless_run_shows_no_total() -> None:
    assert "step 12000  346" in show([make_status()], steps=ENDLESS)


def test_a_terminal_gets_a_bar_instead_of_lines() -> None:
    printed = show([make_status("done")], terminal=True)
    assert "12000/20000" in printed
    assert "done: step" not in printed
