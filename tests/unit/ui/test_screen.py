"""The live view fits a small terminal, whatever a run has to say."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from dreamfleet.ui.run_summary import summarize
from dreamfleet.ui.screen import screen
from support.statuses import limiter, make_status, parse


def drawn(status: dict[str, Any], width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(screen(summarize(parse(status)), console))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def wordy() -> dict[str, Any]:
    long = "a_very_long_name_of_something/" * 10
    status = make_status("failed", task=long, folder=long, agent=long, steps=123_456_789_012 // 100)
    status["reason"] = long
    status["pace"]["step"] = 1_234_567_890
    status["roles"]["agent"]["status"]["learner"]["waits"] = [{"wait": "env_step", "env": long, "seconds": 100.0}]
    status["roles"]["logger"]["status"].update(
        episodes={"train": 10**9, "eval": 10**9},
        mean_return={"train": -1e9, "eval": 1e9},
        last_return={"train": -1e9, "eval": float("inf")},
    )
    return status


@pytest.mark.parametrize("status", [make_status(), wordy(), {"state": "starting"}], ids=["usual", "wordy", "starting"])
@pytest.mark.parametrize("width", [80, 200])
def test_the_view_fits(status: dict[str, Any], width: int) -> None:
    lines = drawn(status, width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 22  # a terminal of 24 lines has room for the prompt


def test_a_terminal_of_80_columns_has_room_for_how_far_the_first_update_is() -> None:
    status = make_status()
    words = "2,310 of 2,992 steps before the first update"
    status["roles"]["replay"]["status"]["limiter"] = limiter("first_update", 682, 2310)
    status["pace"]["env_per_s"] = 3.0
    assert f"limiter  {words}, about 4 minutes" in "\n".join(drawn(status))


def test_the_view_shows_what_was_promised() -> None:
    text = "\n".join(drawn(make_status()))
    for words in (
        "catch",
        "running",
        "60%",
        "12,000 of 20,000 steps",
        "ETA 1m 40s",
        "80.0 env steps/s",
        "2.50 updates/s",
        "last 4.00   mean 3.25 of the last 100 of 250 episodes",
        "11,000 of 100,000 windows (11% full)",
        "blocks the learner: 4 more steps to be inserted",
        "replay to sample for 12 s",
        "actions 90%",
        "restarts  16",
    ):
        assert words in text


def test_its_height_stays_the_same_while_a_run_goes_on() -> None:
    later = make_status()
    later["pace"].update(step=20_000, env_per_s=0.0)
    later["roles"]["logger"]["status"]["episodes"]["train"] = 10**6
    assert len(drawn(make_status())) == len(drawn(later))
