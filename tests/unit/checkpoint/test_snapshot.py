"""Snapshots are complete or absent."""

from __future__ import annotations

import errno
import json
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dreamfleet.checkpoint.manifest import Damage
from dreamfleet.checkpoint.snapshot import Retention, Snapshot, Snapshots
from dreamfleet.core.errors import CheckpointError
from support.snapshot_parts import commit, write_parts


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "snapshots").iterdir())


def test_a_fresh_run_has_no_snapshot(tmp_path) -> None:
    snapshots = Snapshots(tmp_path)
    assert snapshots.latest() is None
    assert snapshots.manifest() == {}
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_counts_from_its_commit_on(tmp_path) -> None:
    snapshots = Snapshots(tmp_path)
    folder = snapshots.begin(120)
    assert folder == snapshots.pending(120)
    (folder / "agent.safetensors").write_text("weights")
    assert snapshots.latest() is None
    final = snapshots.commit(120, {"updates": 3})
    assert snapshots.latest() == final
    assert (final / "agent.safetensors").read_text() == "weights"
    manifest = snapshots.manifest()
    assert (manifest["step"], manifest["updates"], manifest["format"]) == (120, 3, 3)
    assert (manifest["parts"], manifest["elsewhere"]) == (["agent"], ["logger", "replay"])
    assert manifest["files"] == {"agent.safetensors": {"size": 7, "crc32": zlib.crc32(b"weights")}}
    assert names(tmp_path) == ["000000000120", "latest"]


def test_the_newest_complete_snapshot_wins_over_one_that_was_interrupted(tmp_path) -> None:
    snapshots = Snapshots(tmp_path)
    commit(tmp_path, 1)
    (snapshots.begin(2) / "agent").write_text("half")
    assert Snapshots(tmp_path).manifest()["step"] == 1


def test_an_older_snapshot_and_interrupted_ones_go_with_the_next_commit(tmp_path) -> None:
    snapshots = Snapshots(tmp_path, Retention(keep=1))
    for step in (1, 2):
        snapshots.begin(step + 10)
        commit(tmp_path, step, snapshots.retention)
    assert names(tmp_path) == ["000000000002", "latest"]


OTHERS = ["backup", "000000000001.bak", "000000000001 (copy)", "old-000000000001", "best.tmp", "2024", "7.old", "²"]


def test_a_commit_leaves_every_folder_alone_that_is_not_named_like_a_snapshot(tmp_path, capsys) -> None:
    snapshots = Snapshots(tmp_path, Retention(keep=1))
    commit(tmp_path, 1, snapshots.retention, updates=1)
    for name in OTHERS:
        (snapshots.folder / name).mkdir()
        (snapshots.folder / name / "agent.safetensors").write_text("weights")
    for left_over in ("000000000009.tmp", "000000000001.old", "000000000003.gone", "000000000004.tmp.gone"):
        (snapshots.folder / left_over).mkdir()
    for step in (5, 6):
        commit(tmp_path, step, snapshots.retention, updates=step)
    assert names(tmp_path) == sorted(["000000000006", "latest", *OTHERS])
    for name in OTHERS:
        assert (snapshots.folder / name / "agent.safetensors").read_text() == "weights"
    assert Snapshots(tmp_path).manifest()["updates"] == 6
    assert [found.folder.name for found in Snapshots(tmp_path).all()] == ["000000000006"]
    assert capsys.readouterr().err == ""


def test_beginning_again_at_the_same_step_starts_empty(tmp_path) -> None:
    snapshots = Snapshots(tmp_path)
    (snapshots.begin(5) / "stale").write_text("x")
    assert not (snapshots.begin(5) / "stale").exists()


def test_committing_the_same_step_again_replaces_it(tmp_path) -> None:
    snapshots = Snapshots(tmp_path)
    for updates in (1, 2):
        commit(tmp_path, 5, updates=updates)
    assert snapshots.manifest()["updates"] == 2


@pytest.mark.parametrize("name", ["000000000009", ""])
def test_a_pointer_to_nothing_is_an_error_with_a_way_out(tmp_path, name: str) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.folder.mkdir()
    (snapshots.folder / "latest").write_text(name)
    with pytest.raises(CheckpointError, match=f"snapshots/latest names '{name}'.*delete 'latest'"):
        snapshots.latest()


def test_the_first_commit_of_a_live_run_may_fall_into_a_look(tmp_path, monkeypatch) -> None:
    snapshots, folders = Snapshots(tmp_path), Snapshots._folders

    def commit_after_listing(self: Snapshots) -> Iterator[Snapshot]:
        monkeypatch.undo()
        found = list(folders(self))
        commit(tmp_path, 5, updates=2)
        yield from found

    monkeypatch.setattr(Snapshots, "_folders", commit_after_listing)
    assert Snapshots(tmp_path).latest() == snapshots.folder / "000000000005"


def test_whoever_looks_while_snapshots_come_and_go_finds_one(tmp_path) -> None:
    snapshots = Snapshots(tmp_path, Retention(keep=1, best=1))

    def commit_many() -> None:
        for step in range(1, 61):
            write_parts(snapshots.begin(step))
            snapshots.commit(step, {"updates": 1, "score": float(step)})

    seen: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(commit_many)
        while not committing.done():
            seen.append(int(Snapshots(tmp_path).manifest().get("step", 0)))
        committing.result()
    assert seen == sorted(seen)
    assert Snapshots(tmp_path).manifest()["step"] == 60


def test_a_snapshot_that_is_reduced_to_its_agent_during_a_look_is_passed_over(tmp_path, monkeypatch) -> None:
    snapshots, verify = Snapshots(tmp_path, Retention(keep=1, best=1)), Snapshots._verify
    write_parts(snapshots.begin(1))
    snapshots.commit(1, {"updates": 1, "score": 5.0})

    def commit_before_verifying(self: Snapshots, snapshot: Snapshot) -> Damage | None:
        monkeypatch.undo()
        write_parts(snapshots.begin(2))
        snapshots.commit(2, {"updates": 2, "score": 4.0})
        return verify(self, snapshot)

    monkeypatch.setattr(Snapshots, "_verify", commit_before_verifying)
    assert Snapshots(tmp_path).latest() == snapshots.folder / "000000000002"
    assert names(tmp_path) == ["000000000001", "000000000002", "latest"]


def test_the_first_commit_may_fall_between_two_looks_at_the_pointer(tmp_path, monkeypatch) -> None:
    snapshots = Snapshots(tmp_path)

    class CommitsAfterLooking:
        def exists(self) -> bool:
            found = (tmp_path / "snapshots" / "latest").exists()
            if not found:
                commit(tmp_path, 5)
            return found

    looking = Snapshots(tmp_path)
    monkeypatch.setattr(looking, "_pointer", CommitsAfterLooking())
    assert looking.latest() is None
    assert looking.latest() == snapshots.folder / "000000000005"


def test_a_snapshot_of_another_format_is_refused(tmp_path) -> None:
    final = commit(tmp_path, 5)
    manifest = json.loads((final / "manifest.json").read_text())
    del manifest["checksum"]
    (final / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(CheckpointError, match="000000000005 has format 99, this version of dreamfleet reads up to 3"):
        Snapshots(tmp_path).manifest()


def test_an_interruption_while_a_snapshot_is_replaced_leaves_the_one_before(tmp_path, monkeypatch) -> None:
    snapshots = Snapshots(tmp_path)
    commit(tmp_path, 5, updates=1)
    write_parts(pending := snapshots.begin(5))
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        if self == pending:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            snapshots.commit(5, {"updates": 2})
    assert snapshots.manifest()["updates"] == 1
    commit(tmp_path, 5, updates=3)
    assert snapshots.manifest()["updates"] == 3
    assert names(tmp_path) == ["000000000005", "latest"]


def test_a_process_without_a_free_descriptor_takes_no_snapshot_for_damaged(tmp_path, monkeypatch, capsys) -> None:
    """Those that it could not look at were removed with the next commit."""
    snapshots = Snapshots(tmp_path, Retention(keep=3))
    for step in (1, 2):
        commit(tmp_path, step, Retention(keep=3))

    def no_file(folder: Path) -> None:
        raise CheckpointError("cannot read its manifest") from OSError(errno.EMFILE, "Too many open files")

    write_parts(snapshots.begin(3))
    with monkeypatch.context() as patch:
        patch.setattr("dreamfleet.checkpoint.snapshot.read_manifest", no_file)
        with pytest.raises(CheckpointError):
            snapshots.latest()
        snapshots.commit(3, {"updates": 1})  # which is complete, whatever is left to remove
    assert "it is tried again with the next snapshot" in capsys.readouterr().err
    assert [found.manifest["step"] for found in snapshots.all()] == [1, 2, 3]
