"""The folder `<run>/snapshots`: one folder per snapshot, complete or absent."""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dreamfleet.checkpoint.manifest import (
    MANIFEST,
    Damage,
    Unread,
    damage_by,
    find_damage,
    is_agent_whole,
    may_pass,
    needed_files,
    read_manifest,
    reduce_to_agent,
    seal,
)
from dreamfleet.checkpoint.ownership import (
    BEGUN,
    LEARNER,
    OWNER,
    claim,
    is_begun,
    is_begun_by,
    is_claimed,
    mark_begun,
    release,
    unmark,
)
from dreamfleet.checkpoint.retention import NEWEST, Retention
from dreamfleet.checkpoint.schema import AGENT, CONFIG_FILE, FORMAT
from dreamfleet.core.errors import CheckpointError, CheckpointMismatch, DamagedSnapshot
from dreamfleet.core.files.bounded import read_bounded
from dreamfleet.core.files.disk import atomic_write, make_synced, sync
from dreamfleet.core.files.open_files import is_out_of_files

__all__ = ["CONFIG_FILE", "FORMAT", "Retention", "Snapshot", "Snapshots"]

SNAPSHOT = re.compile(r"([0-9]{12,})(\.old)?")  # names of complete ones; `.old` while another takes its place
OWN = re.compile(r"[0-9]{12,}(\.(tmp|old|gone))*")  # every name that is ever given here; all others are the user's
TRIES = 5
MAX_POINTER_BYTES = 1 << 10
SETTLED_S = 0.05  # after this long, a file that changes gets another time of change
_verified: set[tuple[Any, ...]] = set()  # snapshots whose contents this process has found right
_sealed: set[tuple[Any, ...]] = set()  # those that it has committed, and so read for their checksums
_reported: set[str] = set()


@dataclass(frozen=True)
class Snapshot:
    """A snapshot's folder and what it says of itself, which is nothing if its manifest cannot be read."""

    folder: Path
    manifest: dict[str, Any] = field(default_factory=dict)
    damage: Damage | None = None

    @property
    def resumable(self) -> bool:
        return bool(self.manifest) and not self.manifest.get("agent_only")


class Snapshots:
    """Writes a snapshot aside under `<step>.tmp`, renames it once every role has added its part, points `latest` at it
    and removes those that are not to be kept.

    A role on another machine may have a run folder of its own: its part then makes up a snapshot there, which it
    commits once the learner has committed the others. In the learner's folder only the learner commits.
    """

    def __init__(self, run_dir: Path, retention: Retention | None = None) -> None:
        self.run_dir = run_dir
        self.folder = run_dir / "snapshots"
        self.retention = retention or Retention()
        self._pointer = self.folder / "latest"
        self._passed_over: set[Path] = set()  # since they are damaged
        self.token = ""  # of the snapshot that was begun last: whoever adds to it must know it

    # Writing

    def claim(self) -> None:
        """By the learner, and whoever starts it: from now on nobody else commits or removes snapshots here."""
        claim(self.folder)

    def release(self) -> None:
        """By whoever starts a replay here, where no learner runs: from now on replay may commit its parts."""
        release(self.folder)

    def begin(self, step: int) -> Path:
        self.token = secrets.token_hex(16)
        return self._begin(step, LEARNER, self.token)

    def pending(self, step: int) -> Path:
        """Where the roles write their parts of the snapshot in progress."""
        return self.folder / f"{step:012d}.tmp"

    def add_part(self, step: int, token: str, role: str) -> Path:
        """The pending folder for a role that did not begin the snapshot, begun here if the learner is elsewhere."""
        aside = self.pending(step)
        if is_begun(aside, token):
            return aside
        if not token or is_claimed(self.folder) or is_begun_by(aside, LEARNER):
            raise CheckpointError(
                f"the learner has begun no such snapshot {step} in {self.folder}: if it runs in another folder, delete "
                f"{self.folder / OWNER}"
            )
        return self._begin(step, role, token)

    def shares(self, pending: Path) -> bool:
        """Whether the learner has begun it, who then finds the part in its own folder."""
        return is_begun_by(pending, LEARNER)

    def commit_own(self, step: int, token: str, role: str, manifest: dict[str, Any]) -> None:
        """Commits what this role has begun: nothing, where the learner wrote into the same folder."""
        if is_begun(self.pending(step), token, role) and not is_claimed(self.folder):
            self.commit(step, manifest)

    def commit_left_over(self, step: int, role: str, manifest: dict[str, Any]) -> None:
        """Commits what this role began before it died, once the learner says that it has committed the others."""
        if is_begun_by(self.pending(step), role) and not is_claimed(self.folder):
            self.commit(step, manifest)

    def commit(self, step: int, manifest: dict[str, Any], parts: Collection[str] | None = None) -> Path:
        """Everything is on disk before the folder gets its name, and the name before `latest` says it.

        The `parts` must be in the folder; all others are elsewhere. If none are named, those are listed that it has.
        """
        aside, final = self.pending(step), self.folder / f"{step:012d}"
        try:
            seal(aside, {"step": step, "time": time.time(), **manifest}, parts)
            if final.exists():  # moved and not removed: it may be the only one, until the new one has taken its place
                previous = _previous(final)
                shutil.rmtree(previous, ignore_errors=True)
                final.replace(previous)
            aside.replace(final)
            sync(self.folder)
            atomic_write(self._pointer, final.name.encode(), synced=True)
        except OSError as error:
            raise CheckpointError(f"cannot write snapshot {final}: {error}: free some space there") from error
        try:
            unmark(final)
            _remember(_key(final), _sealed)
            self._tidy(final)
        except (OSError, CheckpointError) as error:
            _say(f"cannot remove what is not kept in {self.folder}: {error}: it is tried again with the next snapshot")
        return final

    # Reading

    def latest(self) -> Path | None:
        """The newest complete snapshot, or None in a fresh run.

        One that is damaged is reported on stderr and the one before it used. If all of them are, one that only lacks
        files elsewhere is better than none: its replay leaves those steps out.
        """
        found = self._latest()
        return None if found is None else found.folder

    def newest(self) -> Path | None:
        """The newest complete snapshot by the sizes of its files. Cheap, and nothing is said."""
        return next((found.folder for found in self._candidates() if not self._damage(found, contents=False)), None)

    def manifest(self) -> dict[str, Any]:
        """The manifest of `latest`; empty in a fresh run."""
        found = self._latest()
        return {} if found is None else found.manifest

    def damaged(self) -> list[Snapshot]:
        """Those newer than `latest`, and why they cannot be used."""
        latest, found = self.latest(), []
        for snapshot in self._candidates():
            if snapshot.folder == latest:
                break
            found.append(Snapshot(snapshot.folder, snapshot.manifest, self._verify(snapshot)))
        return found

    def all(self) -> list[Snapshot]:
        """Every snapshot, oldest first, verified; also those that are kept for their agent alone."""
        found = []
        for snapshot in reversed(list(self._folders())):
            found.append(Snapshot(snapshot.folder, snapshot.manifest, self._verify(snapshot)))
        return found

    def outside_files(self) -> set[Path]:
        """What snapshots need elsewhere: also damaged ones, and the one in progress. An error if one cannot be read."""
        needed: set[Path] = set()
        for folder in self._paths():
            if SNAPSHOT.fullmatch(folder.name) or folder.suffix == ".tmp":
                try:
                    needed.update(self.run_dir / name for name in needed_files(folder))
                except CheckpointError as error:  # nobody will ever know what it needs, unless reading failed
                    if may_pass(error):
                        raise CheckpointError(f"snapshot {folder.name}: {error}") from error
        return needed

    # Details

    def _begin(self, step: int, role: str, token: str) -> Path:
        aside = self.pending(step)
        shutil.rmtree(aside, ignore_errors=True)
        try:
            if not self.folder.is_dir():  # training waits for this, so only once
                make_synced(self.folder)
            aside.mkdir()
            mark_begun(aside, role, token)
        except OSError as error:
            raise CheckpointError(f"cannot begin snapshot {aside}: {error}: free some space there") from error
        return aside

    def _latest(self) -> Snapshot | None:
        for _ in range(TRIES):  # a live run may commit and remove snapshots while they are looked at
            damaged: list[Snapshot] = []
            for snapshot in self._candidates():
                damage = self._verify(snapshot)
                if damage is None:
                    self._tell(damaged, snapshot.folder)
                    self._passed_over.update(found.folder for found in damaged)
                    return snapshot
                damaged.append(Snapshot(snapshot.folder, snapshot.manifest, damage))
            if not damaged and not self._pointer.exists():
                return None
            if damaged and [found.folder for found in damaged] == [found.folder for found in self._candidates()]:
                break
        return self._least_damaged(damaged)

    def _candidates(self) -> Iterator[Snapshot]:
        """Newest first, without those that are kept for their agent alone."""
        for snapshot in self._folders():
            if snapshot.resumable or snapshot.damage:
                yield snapshot

    def _folders(self) -> Iterator[Snapshot]:
        """Newest first."""
        named = [(SNAPSHOT.fullmatch(path.name), path) for path in self._paths()]
        found = [(int(name[1]), name[2] is None, path) for name, path in named if name]
        for *_, path in sorted(found, reverse=True):
            try:
                yield Snapshot(path, read_manifest(path))
            except CheckpointMismatch:
                raise
            except CheckpointError as error:
                if is_out_of_files(error):  # says nothing about the snapshot, which must not count as damaged and go
                    raise
                yield Snapshot(path, damage=damage_by(error))

    def _paths(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"cannot look at {self.folder}: {error}") from error

    def _verify(self, snapshot: Snapshot, sealed: Collection[tuple[Any, ...]] = ()) -> Damage | None:
        """With contents, which are read once per process as long as no file changes."""
        try:
            key = _key(snapshot.folder)
        except OSError as error:
            if is_out_of_files(error):
                raise CheckpointError(f"cannot look at snapshot {snapshot.folder}: {error}") from error
            return Unread(error) if may_pass(error) else Damage(f"it is gone: {error.strerror}")
        unknown = key not in _verified and key not in sealed
        damage = self._damage(snapshot, contents=unknown)
        if unknown and damage is None:
            _remember(key, _verified)
        return damage

    def _damage(self, snapshot: Snapshot, contents: bool) -> Damage | None:
        if snapshot.damage:
            return snapshot.damage
        try:
            has_agent = (snapshot.folder / AGENT).exists() or snapshot.manifest.get("imported")
            if not has_agent and is_claimed(self.folder):
                return Damage("it has no agent, and so was not taken by the learner, whose folder this is")
            return find_damage(snapshot.folder, self.run_dir, snapshot.manifest, contents)
        except (OSError, CheckpointError) as error:
            if is_out_of_files(error):
                raise CheckpointError(f"cannot look at snapshot {snapshot.folder}: {error}") from error
            return damage_by(error)

    def _least_damaged(self, damaged: list[Snapshot]) -> Snapshot | None:
        for snapshot in damaged:
            if snapshot.damage and snapshot.damage.outside:
                what = f"snapshot {snapshot.folder.name}: {snapshot.damage}"
                _say(f"{what}; no other is complete, so what it held is left out")
                return snapshot
        if damaged:
            why = f"{damaged[0].folder.name}: {damaged[0].damage}"
            raise DamagedSnapshot(
                f"no snapshot in {self.folder} can be used: {why}: put a copy in its place, or move 'snapshots' away "
                "to start over"
            )
        if self._pointer.exists():
            name = ""
            with contextlib.suppress(OSError, ValueError):
                name = read_bounded(self._pointer, MAX_POINTER_BYTES).decode(errors="replace").strip()
            raise DamagedSnapshot(
                f"snapshots/latest names {name!r}, which is not there: put it back, or delete 'latest' to start over"
            )
        return None

    def _tell(self, damaged: list[Snapshot], used: Path) -> None:
        for snapshot in damaged:
            name = snapshot.folder.name
            _say(f"snapshot {name} is damaged and not used: {snapshot.damage}; {used.name} is used instead")

    def _tidy(self, committed: Path) -> None:
        """Removes what is not kept. A snapshot of a later step is one that could not be used, or of steps undone.

        One that cannot be used takes no place: it keeps no other from being one of the newest or the best. If its agent
        is intact, that may be kept. One that cannot be read now stays, since it may be intact.
        """
        self._passed_over.discard(committed)
        found = [one for one in self._folders() if not one.folder.suffix and one.folder not in self._passed_over]
        found = [one for one in reversed(found) if int(one.folder.name) <= int(committed.name)]
        states = [(snapshot, self._state(snapshot, committed)) for snapshot in found]
        whole = {snapshot.folder for snapshot, damage in states if damage is None}
        if committed not in whole:
            return  # it went bad while it was written: what there was before it must stay
        staying = {snapshot.folder for snapshot, damage in states if damage and damage.unread}
        found = [
            one
            for one, damage in states
            if not damage or (not damage.unread and is_agent_whole(one.folder, one.manifest))
        ]
        reasons = self.retention.reasons(
            [one.manifest if one.folder in whole else {**one.manifest, "agent_only": True} for one in found]
        )
        for snapshot, why in zip(found, reasons, strict=True):
            if NEWEST in why or (why and _keep_agent(snapshot)):
                staying.add(snapshot.folder)
        own = [path for path in self._paths() if path.is_dir() and OWN.fullmatch(path.name)]
        _remove(self.folder, [path for path in own if path not in staying])

    def _state(self, snapshot: Snapshot, committed: Path) -> Damage | None:
        """One that was just written needs no look at its contents, nor does one that is kept for its agent alone."""
        if snapshot.folder == committed or not snapshot.resumable:
            return self._damage(snapshot, contents=False)
        return self._verify(snapshot, _sealed)


def _key(folder: Path) -> tuple[Any, ...]:
    """Differs once a file in the folder has changed."""
    files = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.name != BEGUN]  # which goes at once
    return (str(folder), *((name, stat.st_size, stat.st_mtime_ns) for name, stat in files))


def _remember(key: tuple[Any, ...], known: set[tuple[Any, ...]]) -> None:
    """The manifest is read every time; another file that was just written could still change within the same tick."""
    newest = max((changed for name, _, changed in key[1:] if name != MANIFEST), default=0)
    if time.time_ns() - newest > SETTLED_S * 1e9:
        known.add(key)


def _keep_agent(snapshot: Snapshot) -> bool:
    """Leaves nothing of a snapshot but its agent; false if it has none."""
    if not (snapshot.folder / AGENT).exists():
        return False
    try:
        reduce_to_agent(snapshot.folder, snapshot.manifest)
    except OSError as error:  # such as a full disk: tried again with the next snapshot
        _say(f"cannot tidy snapshot {snapshot.folder.name}: {error}")
    return True


def _remove(folder: Path, unwanted: Collection[Path]) -> None:
    """Under other names first, which the disk must know: half a folder would look like a damaged snapshot."""
    gone = []
    for path in unwanted:
        name = path.with_name(f"{path.name}.gone") if path.suffix != ".gone" else path
        try:
            gone.append(path.replace(name))
        except OSError as error:  # tried again with the next snapshot
            _say(f"cannot remove {path}: {error}")
    if gone:
        sync(folder)
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)


def _previous(snapshot: Path) -> Path:
    """Where a snapshot is kept while another of the same step takes its place."""
    return snapshot.with_name(f"{snapshot.name}.old")


def _say(text: str) -> None:
    """Once per process: several parts of a role look for the newest snapshot."""
    if text not in _reported:
        _reported.add(text)
        sys.stderr.write(f"{text}\n")
