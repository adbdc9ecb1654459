"""What a person sees while a run goes on: a banner and lines in a file, a banner and a view on a terminal."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

from rich.console import Console

from dreamfleet.ui.progress import LINE_EVERY_S, Progress
from support.statuses import limiter, make_status, parse

LAST = "step 12000/20000  78 updates  return 3.25  16 restarts  in 1m 40s  /runs/catch"


def show(statuses: list[dict[str, Any]], terminal: bool = False, quiet: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80, height=24, color_system=None)
    with Progress(console, quiet) as progress:
        for status in statuses:
            progress.show(parse(status))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_into_a_file_goes_a_line_now_and_then_and_one_at_the_end() -> None:
    printed = show([make_status()] * 50 + [make_status("done")])
    assert LINE_EVERY_S > 1  # so that the fifty at once make one line
    lines = [line for line in printed.splitlines() if not line.startswith("starting: ")]
    assert lines == [
        "running: step 12000/20000  80.0 steps/s  78 updates  return 3.25  16 restarts  ETA 1m 40s",
        f"done: {LAST}",
    ]


def test_a_line_says_how_far_the_first_update_is() -> None:
    status = make_status()
    status["pace"] |= {"step": 2310, "updates": 0, "env_per_s": 3.0}
    status["roles"]["agent"]["status"]["learner"]["updates"] = 0
    status["roles"]["replay"]["status"]["limiter"] = limiter("first_update", 682, 2310)
    assert "3.00 steps/s  2,310 of 2,992 steps before the first update, about 4 minutes  return" in show([status])


def test_an_endless_run_shows_no_total() -> None:
    assert "step 12000  80.0 steps/s" in show([make_status(steps=10**10)])


def test_the_banner_is_printed_once_and_the_agents_part_when_it_is_known() -> None:
    later = make_status()
    later["roles"]["agent"]["status"]["about"] = {"parameters": 1234, "parts": {"enc": 1234}, "devices": "cpu 0"}
    lines = show([make_status(), make_status(), later, later]).splitlines()
    assert lines.count("starting: learns  1 update per 32 env steps, 625 updates in all") == 1
    assert lines.count("starting: agent   1,234 parameters (enc 1.2k)") == 1
    assert lines.index("starting: folder  /runs/catch") < lines.index("starting: agent   1,234 parameters (enc 1.2k)")


def test_notes_on_the_environment_stay_whole_in_a_file() -> None:
    note = "image 'image' of 210x160 is resized " + "and so on " * 10
    assert f"starting: {note}\n" in show([make_status(notes=[note])])


def test_quiet_prints_only_the_last_line() -> None:
    for terminal in (False, True):
        assert show([make_status(), make_status("done")], terminal, quiet=True) == f"done: {LAST}\n"


def test_a_terminal_gets_a_view_instead_of_lines_and_a_last_line_below_it() -> None:
    printed = show([make_status(), make_status("done")], terminal=True)
    assert "12,000 of 20,000 steps" in printed
    assert "running: step" not in printed
    assert printed.rstrip().endswith("/runs/catch")
    assert printed.count("done: step") == 1


def test_the_last_line_is_printed_before_show_returns() -> None:
    """The supervisor prints what failed next, and that has to come last."""
    console = Console(file=io.StringIO(), width=200)
    with Progress(console) as progress:
        progress.show(parse(make_status("failed")))
        assert isinstance(console.file, io.StringIO)
        assert "failed: step" in console.file.getvalue()


def test_the_newest_event_is_shown_from_the_run_folder(tmp_path: Path) -> None:
    event = {"time": 0.0, "role": "env-3", "event": "env_restart", "detail": {"error": "ValueError: no"}}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    assert "env-3: env_restart ValueError: no" in show([make_status(folder=str(tmp_path))], terminal=True)


class Stuck(io.StringIO):
    """A terminal that takes nothing, as one that was paused with Ctrl-S."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        assert self.free.wait(30)
        return super().write(text)


def test_a_terminal_that_takes_nothing_holds_up_nobody() -> None:
    file = Stuck()
    progress = Progress(Console(file=file, force_terminal=True, width=80))
    with progress:
        for _ in range(100):
            progress.show(parse(make_status()))  # would never return if it printed itself
        assert file.getvalue() == ""
        file.free.set()
    assert "12,000 of 20,000 steps" in file.getvalue()
