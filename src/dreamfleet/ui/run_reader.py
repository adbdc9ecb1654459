"""Read the state of a run from its folder, whether or not it is still running."""

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
        raise RunFolderError(f"there is no run folder {run}: use the folder that was passed as --run-dir")
    if not (run / "config.yaml").exists() and not (run / "events.jsonl").exists():
        raise RunFolderError(
            f"{run} is not a run folder, it has neither config.yaml nor events.jsonl: use "
            "the folder that was passed as --run-dir"
        )


def read_run(run: Path, now: float | None = None) -> RunSummary:
    """Return the last known state of a run. Silent runs are `died` if the process is gone, else `silent`."""
    check_run_folder(run)
    status, liveness = look(run, now)
    if status is None:
        raise RunFolderError(
            f"{run} has no status yet, because the run has not started: see {run / 'logs'} if it should have"
        )
    found = dataclasses.replace(summarize(status, tail_rows(run / "events.jsonl"), now), folder=str(run))
    silence = f"no status for {duration(found.age_s)}"
    match liveness:
        case Liveness.UNREACHABLE:
            return dataclasses.replace(found, state="silent", reason=f"{silence} from its machine", eta_s=None)
        case Liveness.SILENT:
            return dataclasses.replace(found, state="silent", reason=f"{silence}, but its process exists", eta_s=None)
        case Liveness.DIED:
            again = f"`dreamfleet train --run-dir {run}` resumes from the last snapshot"
            reason = f"its process died: {again}"
            return dataclasses.replace(found, state=DIED, reason=reason, eta_s=None)
    return found
