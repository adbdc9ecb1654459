"""Reads how a run stands from its folder alone, whoever runs it and whether or not it still does."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path
from typing import Any

import psutil

from dreamfleet.core.errors import RunFolderError
from dreamfleet.core.formatting import duration
from dreamfleet.launch.view.digest import Digest, digest
from dreamfleet.launch.view.tail import tail_rows

SILENT_AFTER_S = 10.0  # a status is written about once a second


def check_run_folder(run: Path) -> None:
    if not run.is_dir():
        raise RunFolderError(f"there is no run folder {run}: name the folder that --run-dir was given")
    if not (run / "config.yaml").exists() and not (run / "events.jsonl").exists():
        raise RunFolderError(f"{run} is not a run folder: it has neither config.yaml nor events.jsonl")


def read_run(run: Path, now: float | None = None) -> Digest:
    """The run as it last told of itself. One that has gone silent is `died` if its process is gone, else `silent`."""
    check_run_folder(run)
    status = _read_json(run / "status.json")
    if status is None:
        raise RunFolderError(f"{run} has no status yet: the run has not started; see {run / 'logs'} if it should have")
    found = digest(status, tail_rows(run / "events.jsonl"), now)
    found = dataclasses.replace(found, folder=str(run))
    if found.ended or found.age_s < SILENT_AFTER_S:
        return found
    silence = f"no word for {duration(found.age_s)}"
    if (_read_json(run / "fleet.json") or {}).get("host") not in (None, socket.gethostname()):
        return dataclasses.replace(found, state="silent", reason=f"{silence} from its machine", eta_s=None)
    if _launcher_lives(run):
        return dataclasses.replace(found, state="silent", reason=f"{silence}; its process is there", eta_s=None)
    reason = f"its process ended without a word: `dreamfleet train --run-dir {run}` continues from the last snapshot"
    return dataclasses.replace(found, state="died", reason=reason, eta_s=None)


def _launcher_lives(run: Path) -> bool:
    try:
        return bool(psutil.pid_exists(int((run / ".lock").read_text())))
    except (OSError, ValueError):
        return False


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
