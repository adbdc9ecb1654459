"""Draws the live view of a run folder as it stands into an SVG, for the README.

.venv/bin/python scripts/live_view.py runs/first docs/images/live-view.svg
"""

from __future__ import annotations

import dataclasses
import io
import re
import sys
from pathlib import Path

from rich.console import Console

from dreamfleet.runs.status import read_status
from dreamfleet.runs.tail import tail_rows
from dreamfleet.ui.banner import agent_lines, banner_row, start_lines
from dreamfleet.ui.run_summary import digest
from dreamfleet.ui.screen import screen


def main(run: Path, out: Path) -> None:
    """What the status says is taken as of now, and the folder is called as it was typed."""
    status = read_status(run)
    if status is None or status.run is None:
        raise SystemExit(f"{run} has no status of a run")
    about = {**status.run.model_dump(exclude_unset=True), "folder": str(run)}
    shown = dataclasses.replace(digest(status, tail_rows(run / "events.jsonl"), status.time), folder=str(run))
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, highlight=False)
    for line in [*start_lines(about), *agent_lines(status.agent.about)]:
        console.print(banner_row(line), markup=False)
    console.print()
    console.print(screen(shown, console))
    out.parent.mkdir(parents=True, exist_ok=True)
    # Without fonts and comments from elsewhere: the picture is the same with any monospaced font.
    drawn = console.export_svg(title="dreamfleet train")
    out.write_text(re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", drawn, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
