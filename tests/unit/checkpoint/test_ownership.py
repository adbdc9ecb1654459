"""A snapshot is committed only by the one that began it, and in the learner's folder by nobody else."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import CheckpointError, DreamfleetError
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.replay.store import ReplayOptions, ReplayStore
from dreamfleet.replay.stream import ReplayStream
from dreamfleet.roles.connect import snapshot_request
from dreamfleet.roles.logger import LoggerRole
from dreamfleet.roles.replay import ReplayRole
from support.snapshot_parts import commit, write_parts

NUMBERS = {"step": np.array(999), "updates": np.array(9)}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def make_replay(run: Path) -> ReplayRole:
    stores = [
        ReplayStore(ReplayOptions(4, 60, chunksize=8, folder=run / "replay" / mode)) for mode in ("train", "eval")
    ]
    args = FleetArgs(logdir=run, train_ratio=0)
    return ReplayRole(*stores, lambda replay, mode: ReplayStream(replay, mode, 2, 4), args)


def make_logger(run: Path) -> LoggerRole:
    return LoggerRole(MetricsLogger([]), FleetArgs(logdir=run))


@pytest.mark.parametrize("begun", [False, True], ids=["nothing begun", "another begun"])
@pytest.mark.parametrize("make", [make_replay, make_logger])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_forged_calls_make_no_snapshot_and_remove_none(tmp_path: Path, make, begun: bool) -> None:  # type: ignore[no-untyped-def]
    learner = Snapshots(tmp_path)
    learner.claim()
    for step in (10, 20):
        commit(tmp_path, step)
    role = make(tmp_path)
    if begun:
        learner.begin(999)
    before = contents(learner.folder)
    for request in (snapshot_request(999, "forged"), snapshot_request(10**12, "forged"), snapshot_request(999, "")):
        with pytest.raises(CheckpointError, match="the learner has begun no such snapshot"):
            role.save({**request, **NUMBERS})
        role.committed({**request, **NUMBERS})
    assert contents(learner.folder) == before
    assert Snapshots(tmp_path).manifest()["step"] == 20


@pytest.mark.parametrize(
    "data",
    [{}, {"snapshot": np.array(5)}, {"token": np.zeros(4, np.uint8)}, snapshot_request(-5, "x"),
     {**snapshot_request(5, "x"), "snapshot": np.zeros(3)}],
)  # fmt: skip
def test_a_request_without_a_step_and_a_token_is_refused(tmp_path: Path, data: Mapping[str, np.ndarray]) -> None:
    role = make_replay(tmp_path)
    for handler in (role.capture, role.saved, role.committed):
        with pytest.raises(DreamfleetError, match="a request for a snapshot needs its step and its token"):
            handler({**NUMBERS, **data})


def test_a_snapshot_that_the_learner_has_begun_is_not_committed_by_a_role(tmp_path: Path) -> None:
    learner, role = Snapshots(tmp_path), make_replay(tmp_path)
    write_parts(learner.begin(14), "agent", "logger")
    request = snapshot_request(14, learner.token)
    assert role.save(request)["here"] == 1
    role.committed({**request, **NUMBERS})
    assert Snapshots(tmp_path).latest() is None
    learner.commit(14, {"updates": 1}, ("agent", "replay", "logger"))
    role.committed({**request, **NUMBERS})
    assert Snapshots(tmp_path).manifest()["updates"] == 1


def test_in_a_folder_of_its_own_a_role_commits_what_it_has_captured_for_that_request(tmp_path: Path) -> None:
    role, request = make_replay(tmp_path), snapshot_request(14, "of the learner")
    assert role.save(request)["here"] == 0
    for other in (snapshot_request(14, "another"), snapshot_request(15, "of the learner"), snapshot_request(14, "")):
        role.committed({**other, **NUMBERS})
        assert Snapshots(tmp_path).latest() is None
    make_replay(tmp_path).committed({**request, **NUMBERS})  # it was started again after its part was complete
    assert Snapshots(tmp_path).manifest()["step"] == 999


def test_a_copy_of_the_learners_folder_is_not_the_learners(tmp_path: Path) -> None:
    """So that a replay can be moved to another machine with a copy of the run."""
    Snapshots(tmp_path / "run").claim()
    commit(tmp_path / "run", 10)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    role, request = make_replay(tmp_path / "copy"), snapshot_request(14, "of the learner")
    role.save(request)
    role.committed({**request, **NUMBERS})
    assert Snapshots(tmp_path / "copy").latest() == tmp_path / "copy" / "snapshots" / "000000000014"


def test_a_part_alone_is_no_snapshot_of_the_learner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it was left by an attack on an earlier version."""
    learner = Snapshots(tmp_path)
    before = commit(tmp_path, 10)
    write_parts(learner.add_part(999, "forged", "replay"), "replay")
    learner.commit_own(999, "forged", "replay", {"updates": 1})
    learner.claim()
    assert Snapshots(tmp_path).latest() == before
    assert "000000000999 is damaged and not used: it has no agent" in capsys.readouterr().err


def test_a_part_that_could_not_be_committed_for_lack_of_space_is_committed_later(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    role, request = make_replay(tmp_path), snapshot_request(14, "of the learner")
    role.save(request)

    def full(*args: object, synced: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("dreamfleet.checkpoint.manifest.atomic_write", full)
        with pytest.raises(CheckpointError, match="free some space there"):
            role.committed({**request, **NUMBERS})
    role.committed({**request, **NUMBERS})
    assert Snapshots(tmp_path).manifest()["step"] == 999
    assert not (tmp_path / "snapshots" / "000000000014" / "begun.json").exists()
    assert "begun.json" not in Snapshots(tmp_path).manifest()["files"]


def test_replay_keeps_what_earlier_snapshots_need_if_they_cannot_be_read(tmp_path: Path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    role, kept = make_replay(tmp_path), []
    monkeypatch.setattr(role.train, "keep_files", kept.append)
    monkeypatch.setattr(Snapshots, "outside_files", lambda self: set())
    for step in (14, 15):
        request = snapshot_request(step, "of the learner")
        role.save(request)
        role.committed({**request, **NUMBERS})

        def fails(self: Snapshots) -> set[Path]:
            raise CheckpointError("cannot read it")

        monkeypatch.setattr(Snapshots, "outside_files", fails)
    assert kept == [set()]
    assert "cannot read it: replay deletes nothing that earlier snapshots needed" in capsys.readouterr().err


def test_a_replay_in_a_folder_that_the_learner_has_left_commits_its_parts(tmp_path: Path) -> None:
    Snapshots(tmp_path).claim()
    role, request = make_replay(tmp_path), snapshot_request(14, "of the learner")
    with pytest.raises(CheckpointError, match=r"if it runs in another folder, delete .*learner\.json"):
        role.save(request)
    Snapshots(tmp_path).release()
    Snapshots(tmp_path / "empty").release()
    role.save(request)
    role.committed({**request, **NUMBERS})
    assert Snapshots(tmp_path).manifest()["step"] == 999


def test_a_commit_without_a_part_that_should_be_there_is_refused(tmp_path: Path) -> None:
    before = commit(tmp_path, 10)
    learner = Snapshots(tmp_path)
    folder = learner.begin(20)
    write_parts(folder)
    (folder / "limiter.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"000000000020 cannot be committed: its part lacks limiter.safetensors"):
        learner.commit(20, {"updates": 2}, ("agent", "replay", "logger"))
    assert Snapshots(tmp_path).latest() == before
