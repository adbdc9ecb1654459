"""How replay goes back to the snapshot that the agent has gone back to, wherever replay's own part of it lies.

The learner asks when it begins. A replay on another machine goes on while the agent dies and comes back: its newest
steps are then newer than the weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.manifest import OUTSIDE, read_manifest
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.core.context import RoleContext
from dreamfleet.core.errors import CheckpointError, Disconnected, ReplayError
from dreamfleet.core.events import Event
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.client import Client

ASK_AGAIN_S = 0.05  # while replay still answers that it is about to go back
TRAIN_PART, EVAL_PART, LIMITER_PART = "replay_train.safetensors", "replay_eval.safetensors", "limiter.safetensors"


class Point(NamedTuple):
    """A snapshot as every role that has a part of it knows it: its folder's number, and what its manifest says."""

    snapshot: int
    step: int
    updates: int

    def message(self) -> Arrays:
        return {name: np.array(value, np.int64) for name, value in self._asdict().items()}


BEGINNING = Point(-1, 0, 0)  # without a snapshot


def point_of(folder: Path | None) -> Point:
    if folder is None:
        return BEGINNING
    manifest = read_manifest(folder)
    return Point(_number(folder), int(manifest["step"]), int(manifest.get("updates", 0)))


def point_in(message: Arrays) -> Point:
    return Point(*(int(message[name]) for name in Point._fields))


def send_back(client: Client, folder: Path | None, context: RoleContext) -> None:
    """Has replay go back to the snapshot in `folder`, or to its beginning, and waits until it is there.

    Where it lacks that snapshot it goes back to the one before, or begins empty, and the steps it lacks are reported.
    """
    point = point_of(folder)
    while True:
        try:
            step = int(client.call("go_back", point.message()).result()["step"])
            break
        except Disconnected:  # on its way back, or it died: the wait for the next one has a deadline
            context.stop.wait(ASK_AGAIN_S)
    if step < point.step:
        reason = f"replay has no part of snapshot {point.snapshot}"
        context.report.event(Event.STEPS_LOST, {"steps": point.step - step, "reason": reason})
        where = f"it goes on from step {step}" if step else "it begins empty"
        context.warn(
            f"{reason} in its run folder, so {where} and {point.step - step} steps are lost: if they lie in another "
            "folder, stop the run and start the replay role there"
        )


def own_part(snapshots: Snapshots, point: Point) -> Path | None:
    """The snapshot among replay's own that is `point`, or else the newest one before it; None if there are none at all.

    Raises an error if all of them are newer: they belong to another run, or to one whose snapshots are lost.
    """
    _commit_left_over(snapshots, point)
    newest = snapshots.latest()
    if newest is None or point_of(newest) == point:
        return newest
    sound = [found.folder for found in snapshots.all() if found.resumable and found.damage is None]
    older = [folder for folder in [newest, *sound] if _number(folder) <= point.snapshot]
    if not older:
        agent = f"of step {point.step}" if point != BEGINNING else "at its beginning"
        raise ReplayError(
            f"replay's run folder {snapshots.run_dir} has no snapshot before step {point_of(newest).step}, and "
            f"the agent is {agent}: if they do not belong to another run, move {snapshots.folder} aside on that "
            "machine and restart the replay role to start empty"
        )
    return next((folder for folder in older if point_of(folder) == point), older[-1])


def _commit_left_over(snapshots: Snapshots, point: Point) -> None:
    """Replay's part may be complete where the agent died after its own commit and before it asked replay for one."""
    final = snapshots.folder / f"{point.snapshot:012d}"
    if point == BEGINNING or not _is_whole(snapshots.pending(point.snapshot), point):
        return
    try:
        known = point_of(final) == point
    except CheckpointError:
        known = False
    if not known:
        snapshots.commit_left_over(point.snapshot, "replay", {"step": point.step, "updates": point.updates})


def _is_whole(aside: Path, point: Point) -> bool:
    if not all((aside / name).exists() for name in (TRAIN_PART, EVAL_PART, LIMITER_PART, OUTSIDE)):
        return False
    try:
        return int(load_arrays(aside / LIMITER_PART)["step"]) == point.step
    except (CheckpointError, KeyError):
        return False


def _number(folder: Path) -> int:
    return int(folder.name.partition(".")[0])
