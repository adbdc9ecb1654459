"""Reads how a run stands from its folder alone, whoever runs it and whether or not it still does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dreamfleet.core.errors import RunFolderError
from dreamfleet.core.text.formatting import duration
from dreamfleet.runs.liveness import Liveness, look
from dreamfleet.runs.tail import tail_rows
from dreamfleet.ui.run_summary import DIED, RunSummary, summarize


def check_run_folder(run: Path) -> None:
    if not run.is_dir():
        raise RunFolderError(f"there is no run folder {run}: name the folder that --run-dir was given")
    if not (run / "config.yaml").exists() and not (run / "events.jsonl").exists():
        raise RunFolderError(f"{run} is not a run folder: it has neither config.yaml nor events.jsonl")


def read_run(run: Path, now: float | None = None) -> RunSummary:
    """The run as it last told of itself. One that has gone silent is `died` if its process is gone, else `silent`."""
    check_run_folder(run)
    status, liveness = look(run, now)
    if status is None:
        raise RunFolderError(f"{run} has no status yet: the run has not started; see {run / 'logs'} if it should have")
    found = dataclasses.replace(summarize(status, tail_rows(run / "events.jsonl"), now), folder=str(run))
    silence = f"no word for {duration(found.age_s)}"
    match liveness:
        case Liveness.UNREACHABLE:
            return dataclasses.replace(found, state="silent", reason=f"{silence} from its machine", eta_s=None)
        case Liveness.SILENT:
            return dataclasses.replace(found, state="silent", reason=f"{silence}; its process is there", eta_s=None)
        case Liveness.DIED:
            again = f"`dreamfleet train --run-dir {run}` continues from the last snapshot"
            reason = f"its process ended without a word: {again}"
            return dataclasses.replace(found, state=DIED, reason=reason, eta_s=None)
    return found
