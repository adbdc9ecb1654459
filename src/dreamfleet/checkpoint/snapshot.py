"""The folder `<run>/snapshots`: one folder per snapshot, complete or absent."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from dreamfleet.core.errors import CheckpointError

FORMAT = 1


class Snapshots:
    """Writes a snapshot aside under `<step>.tmp`, renames it once every role has added its part, and points `latest` at
    it.

    A role on another machine may have a run folder of its own: its part then makes up a snapshot there, which it
    commits once the learner has committed the others.
    """

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / "snapshots"

    def begin(self, step: int) -> Path:
        aside = self.pending(step)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        return aside

    def pending(self, step: int) -> Path:
        """Where the roles write their parts of the snapshot in progress."""
        return self.folder / f"{step:012d}.tmp"

    def add_part(self, step: int) -> Path:
        """The pending folder for a role that did not begin the snapshot, made here if it began on another machine."""
        aside = self.pending(step)
        aside.mkdir(parents=True, exist_ok=True)
        return aside

    def commit_own(self, step: int, manifest: dict[str, Any]) -> None:
        """Commits what is left to commit: nothing, where the learner wrote into the same folder."""
        if self.pending(step).is_dir():
            self.commit(step, manifest)

    def commit(self, step: int, manifest: dict[str, Any]) -> Path:
        aside, final = self.pending(step), self.folder / f"{step:012d}"
        text = json.dumps({"format": FORMAT, "step": step, "time": time.time(), **manifest}, indent=2)
        (aside / "manifest.json").write_text(text)
        if final.exists():  # moved and not removed: it may be the only one, until the new one has taken its place
            previous = _previous(final)
            shutil.rmtree(previous, ignore_errors=True)
            final.replace(previous)
        aside.replace(final)
        pointer = self.folder / "latest.tmp"
        pointer.write_text(final.name)
        pointer.replace(self.folder / "latest")
        self._remove_all_but(final)
        return final

    def latest(self) -> Path | None:
        """The newest complete snapshot, or None in a fresh run."""
        try:
            name = (self.folder / "latest").read_text().strip()
        except FileNotFoundError:
            return None
        if name:
            named = self.folder / name
            for found in (named, _previous(named)):
                if (found / "manifest.json").is_file():
                    return found
        raise CheckpointError(f"snapshots/latest names {name!r}, which is not complete: restore it or delete 'latest'")

    def manifest(self) -> dict[str, Any]:
        """The newest snapshot's manifest; empty in a fresh run."""
        found = self.latest()
        if found is None:
            return {}
        manifest: dict[str, Any] = json.loads((found / "manifest.json").read_text())
        if manifest.get("format") != FORMAT:
            raise CheckpointError(
                f"snapshot {found.name} has format {manifest.get('format')}, this version reads {FORMAT}"
            )
        return manifest

    def _remove_all_but(self, kept: Path) -> None:
        for path in self.folder.iterdir():
            if path.is_dir() and path != kept:
                shutil.rmtree(path, ignore_errors=True)


def _previous(snapshot: Path) -> Path:
    """Where a snapshot is kept while another of the same step takes its place."""
    return snapshot.with_name(f"{snapshot.name}.old")
