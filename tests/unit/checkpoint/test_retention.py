"""Which snapshots stay, whole or for their agent alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dreamfleet.checkpoint import manifest as manifest_module
from dreamfleet.checkpoint import snapshot as snapshots_module
from dreamfleet.checkpoint.manifest import add_outside_files
from dreamfleet.checkpoint.snapshot import Retention, Snapshots
from dreamfleet.core.errors import CheckpointError, DamagedSnapshot
from support.snapshot_parts import write_parts


def reverse(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


def manifests(*steps_and_scores: tuple[int, float | None]) -> list[dict[str, float | None]]:
    return [{"step": step, "score": score} for step, score in steps_and_scores]


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (Retention(keep=1), ["", "", "", "", "newest"]),
        (Retention(keep=3), ["", "", "newest", "newest", "newest"]),
        (Retention(keep=1, every=100), ["", "milestone", "", "milestone", "newest"]),
        (Retention(keep=1, best=2), ["best", "", "", "best", "newest"]),
        (Retention(keep=2, every=300, best=1), ["", "", "", "newest milestone best", "newest"]),
    ],
    ids=str,
)
def test_the_newest_milestones_and_the_best_stay(retention: Retention, expected: list[str]) -> None:
    found = manifests((90, 5.0), (110, 3.0), (190, None), (320, 6.0), (390, 4.0))
    assert [" ".join(why) for why in retention.reasons(found)] == expected


def test_of_equal_scores_the_newer_one_is_the_best() -> None:
    assert Retention(keep=1, best=1).reasons(manifests((1, 2.0), (2, 2.0), (3, 1.0))) == [[], ["best"], ["newest"]]


def commit(run: Path, step: int, retention: Retention, score: float | None = None) -> Path:
    snapshots = Snapshots(run, retention)
    folder = snapshots.begin(step)
    write_parts(folder, value=step)
    (folder / "config.yaml").write_text(f"seed: {step}")
    add_outside_files(folder, run, {run / "replay" / f"{step}-{part}": 1 for part in "ab"})
    (run / "replay").mkdir(exist_ok=True)
    for part in "ab":
        (run / "replay" / f"{step}-{part}").write_text("x")
    return snapshots.commit(step, {"updates": step, "score": score})


def names(run: Path) -> list[str]:
    return sorted(path.name.lstrip("0") for path in (run / "snapshots").iterdir() if path.is_dir())


def test_a_kept_agent_has_no_replay_and_no_run_continues_from_it(tmp_path: Path) -> None:
    retention = Retention(keep=2, every=100, best=1)
    for step, score in ((50, 9.0), (110, 1.0), (150, 2.0), (160, 3.0), (170, 4.0)):
        commit(tmp_path, step, retention, score)
    assert names(tmp_path) == ["110", "160", "170", "50"]
    best = tmp_path / "snapshots" / "000000000050"
    assert sorted(path.name for path in best.iterdir()) == ["agent.safetensors", "config.yaml", "manifest.json"]
    found = Snapshots(tmp_path).all()
    assert [bool(snapshot.manifest.get("agent_only")) for snapshot in found] == [True, True, False, False]
    assert [snapshot.damage for snapshot in found] == [None] * 4
    needed = {path.name for path in Snapshots(tmp_path).outside_files()}
    assert needed == {"160-a", "160-b", "170-a", "170-b"}
    for step in (160, 170):
        (tmp_path / "snapshots" / f"{step:012d}" / "replay_train.safetensors").unlink()
    with pytest.raises(DamagedSnapshot, match=r"no snapshot in .* can be used"):
        Snapshots(tmp_path).latest()


def test_a_part_without_an_agent_is_not_kept_for_it(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, Retention(keep=1, every=10))
    for step in (10, 20):
        write_parts(snapshots.add_part(step, "its token", "replay"), "replay")
        snapshots.commit_own(step, "its token", "replay", {"updates": 1})
    assert names(tmp_path) == ["20"]


def test_a_snapshot_that_is_damaged_keeps_no_other_from_being_kept(tmp_path: Path) -> None:
    """Not even one that looks newer: of those that are removed none is whole while a damaged one stays."""
    retention = Retention(keep=2, best=1)
    for step in (10, 20, 30):
        commit(tmp_path, step, retention, score=1.0)
    reverse(tmp_path / "snapshots" / "000000000030" / "agent.safetensors")
    commit(tmp_path, 40, retention)
    assert names(tmp_path) == ["20", "40"]
    assert [found.damage for found in Snapshots(tmp_path).all()] == [None, None]


@pytest.mark.parametrize("retention", [Retention(keep=1, best=1), Retention(keep=1, every=20)], ids=str)
def test_an_agent_is_kept_whatever_is_wrong_with_the_replay_beside_it(tmp_path: Path, retention: Retention) -> None:
    commit(tmp_path, 10, retention, score=1.0)
    reverse(commit(tmp_path, 20, retention, score=2.0) / "replay_train.safetensors")
    commit(tmp_path, 30, retention, score=1.0)
    assert names(tmp_path) == ["20", "30"]
    kept, newest = Snapshots(tmp_path).all()
    assert kept.manifest["agent_only"]
    assert kept.damage is newest.damage is None


@pytest.mark.parametrize("method", ["open", "stat"])
@pytest.mark.parametrize("name", ["manifest.json", "agent.safetensors", "outside.json"])
def test_a_snapshot_that_cannot_be_read_for_a_moment_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, method: str
) -> None:
    retention = Retention(keep=3)
    for step in (10, 20, 30):
        commit(tmp_path, step, retention)
    before, original = {path.name: path.read_bytes() for path in tmp_path.rglob("*10-a")}, getattr(Path, method)

    def fails(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == name and self.parent.name in ("000000000010", "000000000020"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return original(self, *args, **kwargs)

    snapshots_module._verified.clear()
    snapshots_module._sealed.clear()  # a slow commit seals what it wrote, whose contents are then not read
    with monkeypatch.context() as patch:
        patch.setattr(Path, method, fails)
        commit(tmp_path, 40, retention)
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*10-a")} == before
    found = Snapshots(tmp_path).all()
    assert [snapshot.damage for snapshot in found] == [None] * len(found)
    assert names(tmp_path) == ["10", "20", "30", "40"]
    commit(tmp_path, 50, retention)
    assert names(tmp_path) == ["30", "40", "50"]


def test_what_a_snapshot_needs_is_not_guessed_if_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retention, original = Retention(keep=3), Path.open
    for step in (10, 20):
        commit(tmp_path, step, retention)

    def fails(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == "outside.json" and self.parent.name == "000000000010":
            raise OSError(errno.EMFILE, "Too many open files")
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fails)
        with pytest.raises(CheckpointError, match=r"snapshot 000000000010: cannot read its outside.json"):
            Snapshots(tmp_path).outside_files()
    (tmp_path / "snapshots" / "000000000010" / "outside.json").write_text('{"replay/10-a": 1, "replay/../x": 1}')
    assert {path.name for path in Snapshots(tmp_path).outside_files()} >= {"10-a", "20-a", "20-b"}


def test_a_commit_does_not_read_the_snapshot_before_it_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = manifest_module.checksum
    monkeypatch.setattr(manifest_module, "checksum", lambda path: [read.append(path.parent.name), original(path)][1])
    for step in (10, 20):
        snapshots = Snapshots(tmp_path, Retention(keep=2))
        write_parts(folder := snapshots.begin(step))
        for path in folder.iterdir():
            os.utime(path, (1.0, 1.0))  # a large one has been written for a while
        snapshots.commit(step, {"updates": 1})
    assert set(read[5:]) == {"000000000020.tmp"}
    reverse(tmp_path / "snapshots" / "000000000010" / "agent.safetensors")
    assert [bool(found.damage) for found in Snapshots(tmp_path).all()] == [True, False]
