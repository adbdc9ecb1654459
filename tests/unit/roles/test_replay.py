"""The replay role's handlers, called directly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.core.encoding.packed_json import unpack_json
from dreamfleet.core.errors import DeadlineExceeded, Disconnected, ReplayError, Stopped
from dreamfleet.core.interfaces import Arrays, Replay, ReplaySave
from dreamfleet.core.waits import LimiterState
from dreamfleet.replay.store import ReplayOptions
from dreamfleet.roles.connect import EPOCH, RUN_STEP, snapshot_request
from dreamfleet.roles.replay import ReplayRole
from support.replay_roles import fill, make_role, steps
from support.replays import files_in, wait_for_writes

WAIT_S = 20.0
TOKEN = "of-this-snapshot"


class Writes:
    """A save whose `write` is another function."""

    def __init__(self, write: Callable[[], Arrays]) -> None:
        self.write = write


def test_training_samples_wait_until_the_limiter_opens(tmp_path) -> None:
    role = make_role(tmp_path)  # one window per step: from -10 above -8, that is with the third counted step
    fill(role, 11)
    with pytest.raises(DeadlineExceeded, match="11 of 12 steps before the first update"):
        role.sample_batch_train({})
    fill(role, 1, start=11)
    batch = role.sample_batch_train({})
    assert batch["value"].shape == (2, 5)
    assert batch["consec"].tolist() == [0, 0]
    assert (np.diff(batch["value"]) == 1).all()


def test_inserting_waits_when_the_learner_is_behind(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 27)  # 18 steps counted: the balance is at its tolerance of 8
    with pytest.raises(DeadlineExceeded, match=r"insert waited.*1 more windows to be sampled"):
        fill(role, 1)
    assert len(role.train) == 23


def test_a_sample_opens_the_limiter_for_inserts(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 27)
    role.sample_batch_train({})
    fill(role, 1)
    assert len(role.train) == 24


def test_a_row_of_a_batch_counts_as_a_step(tmp_path) -> None:
    role = make_role(tmp_path)
    for value in range(5):
        role.add_batch(steps([value] * 3))
    assert role.sizes({})["inserts"] == 15
    assert role.sizes({})["train"] == 3


def test_an_observation_may_be_called_epoch(tmp_path) -> None:
    role = make_role(tmp_path)
    for value in range(12):
        role.add_batch({**steps([value]), "epoch": np.array([value])})
    batch = role.sample_batch_train({})
    assert (batch["epoch"] == batch["value"]).all()


def test_one_sample_of_several_chunks_counts_once(tmp_path) -> None:
    role = make_role(tmp_path, consec_train=3, train_ratio=0.0)
    fill(role, 40)
    before = role.limiter.stats()["samples"]
    consec = [role.sample_batch_train({})["consec"][0] for _ in range(4)]
    assert consec == [0, 1, 2, 0]
    assert role.limiter.stats()["samples"] - before == 4  # two samples of two windows


def counts(role: ReplayRole) -> dict[str, int]:
    return {key: int(value) for key, value in role.sizes({}).items() if key not in ("step", EPOCH)}


def test_reports_and_evaluation_pass_the_limiter(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 5)
    for value in range(200):
        role.add_batch_eval(steps([1000 + value]))
    assert role.sample_batch_report({})["value"].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert role.sample_batch_eval({})["value"].min() >= 1000
    assert counts(role) == {"train": 1, "eval": 100, "inserts": 5}
    assert role.limiter.stats()["samples"] == 0


def test_eval_steps_never_get_into_training_or_report_batches(tmp_path) -> None:
    role = make_role(tmp_path, train_ratio=0.0)
    fill(role, 12)
    for value in range(50):
        role.add_batch_eval(steps([1000 + value]))
    for _ in range(5):
        assert role.sample_batch_train({})["value"].max() < 1000
        assert role.sample_batch_report({})["value"].max() < 1000


def test_update_overwrites_and_counts_what_is_gone(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 5)
    stepid = role.sample_batch_report({})["stepid"][:1]
    stepid = np.concatenate([stepid, stepid + np.array([99, 0])])
    reply = role.update({"stepid": stepid, "dyn/value": np.full((2, 5), 7, np.float32)})
    assert reply["missing"] == 5
    assert role.sample_batch_report({})["dyn/value"].tolist() == [[7]] * 2  # latents come for the context step


def test_a_sample_that_waits_is_served_by_the_insert_that_opens_the_limiter(tmp_path) -> None:
    role = make_role(tmp_path, wait_timeout_s=WAIT_S)
    fill(role, 11)
    asked = threading.Event()
    with ThreadPoolExecutor(1) as pool:

        def sample() -> Arrays:
            asked.set()
            return role.sample_batch_train({})

        future = pool.submit(sample)
        assert asked.wait(WAIT_S)
        fill(role, 1, start=11)
        assert future.result(WAIT_S)["value"].shape == (2, 5)


def test_closing_the_limiter_ends_waits_with_stopped(tmp_path) -> None:
    role = make_role(tmp_path, wait_timeout_s=WAIT_S)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(role.sample_batch_train, {})
        role.limiter.close()
        with pytest.raises(Stopped):
            future.result(WAIT_S)


def test_both_replays_and_the_limiter_continue_from_a_snapshot(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 14)
    for value in range(6):
        role.add_batch_eval(steps([1000 + value]))
    role.sample_batch_train({})
    snapshots = Snapshots(tmp_path)
    snapshots.begin(14)
    assert role.save(snapshot_request(14, snapshots.token))["inserts"] == 14
    snapshots.commit(14, {"updates": 1})
    restored = make_role(tmp_path)
    restored.restore()
    assert counts(restored) == counts(role)
    assert restored.limiter.save() == role.limiter.save() == {"size": 14, "samples": 2, "balance": -7}
    assert restored.sample_batch_eval({})["value"].min() >= 1000
    assert restored.sample_batch_train({})["value"].max() < 14


def test_the_step_of_the_run_is_captured_with_the_steps(tmp_path) -> None:
    """It is ahead of the number of inserts once steps were lost."""
    role = make_role(tmp_path)
    for value in range(14):
        role.add_batch({**steps([value]), RUN_STEP: np.array(100 + value)})
    answer = role.sizes({})
    assert (answer["inserts"], answer["step"]) == (14, 113)
    snapshots = Snapshots(tmp_path)
    snapshots.begin(113)
    answer = role.save(snapshot_request(113, snapshots.token))
    assert (answer["inserts"], answer["step"]) == (14, 113)
    snapshots.commit(113, {"updates": 1, "step": 113})
    restored = make_role(tmp_path)
    restored.restore()
    answer = restored.sizes({})
    assert (answer["inserts"], answer["step"]) == (14, 113)


def test_on_a_nearly_full_disk_full_chunks_wait_for_the_next_snapshot(tmp_path) -> None:
    role = make_role(tmp_path, train_ratio=0)
    low = threading.Event()
    low.set()
    role.train.put_off_writes(low.is_set)  # type: ignore[attr-defined]
    chunk = ReplayOptions(1, 1).chunksize
    fill(role, 2 * chunk)
    wait_for_writes(role.train)  # type: ignore[arg-type]
    assert files_in(tmp_path / "train") == set()
    low.clear()
    fill(role, chunk, 2 * chunk)
    wait_for_writes(role.train)  # type: ignore[arg-type]
    assert len(files_in(tmp_path / "train")) == 1


def test_a_fresh_run_restores_nothing(tmp_path) -> None:
    role = make_role(tmp_path)
    role.restore()
    assert counts(role) == {"train": 0, "eval": 0, "inserts": 0}


def test_the_limiter_is_made_from_the_batch_shape(tmp_path) -> None:
    role = make_role(tmp_path, batch_size=16, batch_length=64, train_ratio=32.0)
    assert (role.limiter.samples_per_insert, role.limiter.min_size, role.limiter.tolerance) == (0.5, 1040, 64)


class NoServer:
    def stats(self) -> dict[str, float]:
        return {"queue": 0}


def test_the_status_says_what_the_limiter_waits_for(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 4)
    status = role.status(NoServer())  # type: ignore[arg-type]
    limiter = status["limiter"]
    assert (limiter["waits_for"], limiter["missing"]) == ("4 of 12 steps before the first update", 8)
    assert (limiter["state"], limiter["inserts"]) == (LimiterState.FIRST_UPDATE, 4)
    assert (status["eval_items"], status["waiting"], status["waits"]) == (0, {}, [])


def test_a_snapshot_holds_as_many_steps_as_the_limiter_has_counted(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 14)
    begin_save = role.train.begin_save
    inserts: list[Future[None]] = []
    with ThreadPoolExecutor(1) as pool:

        def insert_meanwhile() -> ReplaySave:
            begun = begin_save()
            inserts.append(pool.submit(fill, role, 1, 14))
            wait(inserts, 0.2)  # it must not get through before the counts are taken as well
            return begun

        role.train.begin_save = insert_meanwhile  # type: ignore[method-assign]
        assert role.save(snapshot_request(14, TOKEN))["inserts"] == 14
        inserts[0].result(WAIT_S)
    assert role.sizes({})["inserts"] == 15
    counts = load_arrays(Snapshots(tmp_path).pending(14) / "limiter.safetensors")
    assert counts["size"] == 14


def test_a_replay_that_was_started_again_has_no_part_of_a_snapshot(tmp_path) -> None:
    """It was captured by the one before, and may not have been written."""
    role = make_role(tmp_path)
    fill(role, 14)
    numbers = snapshot_request(14, TOKEN)
    role.capture(numbers)
    role.saved(numbers)
    with pytest.raises(Disconnected, match="started again"):
        make_role(tmp_path).saved(numbers)


def test_a_snapshot_waits_for_one_that_was_given_up(tmp_path) -> None:
    role = make_role(tmp_path, save_timeout_s=WAIT_S)
    fill(role, 14)
    begin_save, writing, most = role.train.begin_save, [0], [0]

    def write_slowly(begun: ReplaySave) -> Arrays:
        writing[0] += 1
        most[0] = max(most[0], writing[0])
        threading.Event().wait(0.2)
        saved = begun.write()
        writing[0] -= 1
        return saved

    role.train.begin_save = lambda: Writes(partial(write_slowly, begin_save()))  # type: ignore[method-assign]
    for number in (14, 15):
        role.capture(snapshot_request(number, TOKEN))
    role.saved(snapshot_request(15, TOKEN))
    assert most == [1]


def test_a_snapshot_has_counted_the_samples_that_were_drawn(tmp_path) -> None:
    role = make_role(tmp_path, wait_timeout_s=WAIT_S)
    fill(role, 14)
    draw, drawing, go_on = role.train.sample, threading.Event(), threading.Event()

    def draw_slowly(n: int, mode: str) -> Arrays:
        drawing.set()
        go_on.wait(WAIT_S)
        return draw(n, mode)

    role.train.sample = draw_slowly  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as pool:
        sampling = pool.submit(role.sample_batch_train, {})
        assert drawing.wait(WAIT_S)
        saving = pool.submit(role.save, snapshot_request(14, TOKEN))
        wait([saving], 0.2)  # it must not get through between the draw and its count
        go_on.set()
        saving.result(WAIT_S)
        sampling.result(WAIT_S)
    folder = Snapshots(tmp_path).pending(14)
    drawn = unpack_json(load_arrays(folder / "replay_train.safetensors")["meta"])["counts"]["samples"]
    assert load_arrays(folder / "limiter.safetensors")["samples"] == drawn == 2


def test_a_role_with_a_run_folder_of_its_own_commits_its_own_part(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 14)
    numbers = {**snapshot_request(14, TOKEN), "step": np.array(14), "updates": np.array(3)}
    role.save(numbers)
    assert Snapshots(tmp_path).latest() is None
    role.committed(numbers)
    assert Snapshots(tmp_path).manifest()["updates"] == 3
    role.committed(numbers)  # in a shared folder the learner has renamed it already
    restored = make_role(tmp_path)
    restored.restore()
    assert counts(restored) == counts(role)


def test_what_comes_after_the_capture_is_not_part_of_the_snapshot(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 14)
    role.add_batch_eval(steps([1000]))
    numbers = {**snapshot_request(14, TOKEN), "step": np.array(14), "updates": np.array(1)}
    assert role.capture(numbers)["inserts"] == 14
    fill(role, 3, start=14)
    role.add_batch_eval(steps([1001]))
    role.saved(numbers)
    role.committed(numbers)
    restored = make_role(tmp_path)
    restored.restore()
    assert counts(restored)["inserts"] == 14
    assert restored.train.stats()["inserts"] == 14
    assert restored.evaluation.stats()["inserts"] == 1


def test_a_part_that_cannot_be_written_is_told_to_whoever_waits_for_it(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 14)

    begin_save = role.train.begin_save

    def fail(begun: ReplaySave) -> Arrays:
        begun.write()
        raise ReplayError("no space left")

    role.train.begin_save = lambda: Writes(partial(fail, begin_save()))  # type: ignore[method-assign]
    numbers = snapshot_request(14, TOKEN)
    assert role.capture(numbers)["inserts"] == 14
    with pytest.raises(ReplayError, match="no space left"):
        role.saved(numbers)


def fail_next_insert(replay: Any) -> None:
    insert = replay.add_batch

    def fail(data: Arrays) -> None:
        replay.add_batch = insert
        raise ValueError("broken")

    replay.add_batch = fail


def test_after_a_failed_insert_replay_takes_no_steps_until_the_agent_goes_back(tmp_path) -> None:
    """The steps that come after those that failed would follow a gap, and a snapshot would keep it."""
    role = make_role(tmp_path)
    fill(role, 14)
    fail_next_insert(role.train)
    with pytest.raises(ValueError, match="broken"):
        fill(role, 1, start=14)
    with pytest.raises(ValueError, match="broken"):
        fill(role, 1, start=15)
    with pytest.raises(ValueError, match="broken"):
        role.save(snapshot_request(14, TOKEN))
    assert counts(role)["inserts"] == 14


def test_after_a_failed_insert_of_evaluation_no_snapshot_is_taken(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 14)
    fail_next_insert(role.evaluation)
    with pytest.raises(ValueError, match="broken"):
        role.add_batch_eval(steps([14]))
    for insert_more in (role.add_batch_eval, role.add_batch):
        with pytest.raises(ValueError, match="broken"):
            insert_more(steps([15]))
    with pytest.raises(ValueError, match="broken"):
        role.save(snapshot_request(14, TOKEN))


class WatchedLock:
    """A lock that notes what a role knows of a failed insert when it is released."""

    def __init__(self, role: ReplayRole) -> None:
        self.role = role
        self.known: list[Exception | None] = []

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self.known.append(self.role._failed)


@pytest.mark.parametrize("mode", ["train", "evaluation"])
def test_who_waits_for_a_failed_insert_finds_it_noted(tmp_path, mode: str) -> None:
    """A snapshot, or an insert by another thread, goes on as soon as the lock is released."""
    role = make_role(tmp_path)
    lock = role._insert_lock = WatchedLock(role)  # type: ignore[assignment]

    def fail(data: Arrays) -> None:
        raise ValueError("broken")

    getattr(role, mode).add_batch = fail
    with pytest.raises(ValueError, match="broken"):
        (role.add_batch if mode == "train" else role.add_batch_eval)(steps([0]))
    assert [str(error) for error in lock.known] == ["broken"]


def test_a_capture_gives_up_where_an_insert_does_not_end_and_holds_nothing_then(tmp_path) -> None:
    role = make_role(tmp_path, save_timeout_s=0.05)
    fill(role, 14)
    for lock in (role._insert_lock, role._sample_lock):
        with lock, pytest.raises(DeadlineExceeded, match=r"the train replay was not captured within 0\.05 s"):
            role.capture(snapshot_request(14, TOKEN))
    role.sample_batch_train({})
    fill(role, 1, start=14)
    assert role.save(snapshot_request(15, TOKEN))["inserts"] == 15


def test_a_capture_that_fails_leaves_no_chunk_of_the_other_replay_pinned(tmp_path) -> None:
    role = make_role(tmp_path, save_timeout_s=WAIT_S)
    fill(role, 14)
    begin_save = role.evaluation.begin_save

    def fail() -> ReplaySave:
        raise ReplayError("no save")

    role.evaluation.begin_save = fail  # type: ignore[method-assign]
    with pytest.raises(ReplayError, match="no save"):
        role.capture(snapshot_request(14, TOKEN))
    role.evaluation.begin_save = begin_save  # type: ignore[method-assign]
    assert role.save(snapshot_request(15, TOKEN))["inserts"] == 14
    assert not role.train._memory.pins.any()  # type: ignore[attr-defined]


class FormerReplay:
    """A replay with the interface of before: `save`, and no `begin_save`."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def __len__(self) -> int:
        return len(self._replay)

    def __getattr__(self, name: str) -> Any:
        if name == "begin_save":
            raise AttributeError(name)
        return getattr(self._replay, name)


def test_a_replay_with_the_former_interface_is_saved(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 14)
    role.train, role.evaluation = FormerReplay(role.train), FormerReplay(role.evaluation)  # type: ignore[assignment]
    take(role, 14)
    restored = make_role(tmp_path)
    restored.restore()
    assert counts(restored) == counts(role)


def take(role: ReplayRole, step: int) -> None:
    numbers = {**snapshot_request(step, TOKEN), "step": np.array(step), "updates": np.array(step)}
    role.save(numbers)
    role.committed(numbers)


def chunk_files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "train").iterdir()}


def test_every_snapshot_that_is_kept_has_its_chunks_though_they_are_evicted(tmp_path) -> None:
    role = make_role(tmp_path, keep=2, train_ratio=0.0)
    held: list[set[str]] = []
    for index in range(4):
        role.add_batch({**steps([0]), "stream": np.array([index])})
        for value in range(1, 150):  # more than the replay holds
            role.add_batch({**steps([value]), "stream": np.array([index])})
        take(role, 150 * (index + 1))
        held.append({path.name for path in role.train.saved_files()})  # type: ignore[attr-defined]
    assert not held[0] & held[3]
    wait_for_writes(role.train)  # type: ignore[arg-type]
    assert held[2] | held[3] <= chunk_files(tmp_path)
    assert not (held[0] | held[1]) - held[2] - held[3] & chunk_files(tmp_path)
    restored = make_role(tmp_path, keep=2, train_ratio=0.0)
    restored.restore()
    assert chunk_files(tmp_path) == held[2] | held[3]
    newest = Snapshots(tmp_path).latest()
    assert newest is not None
    (newest / "replay_train.safetensors").write_bytes(b"")
    older = make_role(tmp_path, keep=2, train_ratio=0.0)
    older.restore()
    assert counts(older)["inserts"] == 450
    assert older.train.stats()["chunks_damaged"] == 0
    assert chunk_files(tmp_path) == held[2] | held[3]  # nothing is deleted before the next snapshot is there
    older.add_batch({**steps([0]), "stream": np.array([9])})
    take(older, 451)
    assert Snapshots(tmp_path).manifest()["step"] == 451


def test_a_missing_chunk_makes_a_snapshot_one_that_is_passed_over(tmp_path, capsys) -> None:
    role = make_role(tmp_path, train_ratio=0.0)
    fill(role, 14)
    take(role, 14)
    role.add_batch(steps([99], stream=2))
    take(role, 15)
    (missing,) = (tmp_path / "train").glob("2-*-steps-*")
    missing.unlink()
    restored = make_role(tmp_path, train_ratio=0.0)
    restored.restore()
    assert counts(restored)["inserts"] == 14
    assert f"000000000015 is damaged and not used: train/{missing.name} is missing" in capsys.readouterr().err
