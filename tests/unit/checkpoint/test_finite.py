"""An agent that holds a NaN or an infinity is damage, whatever its checksum says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dreamfleet.checkpoint.arrays import save_arrays
from dreamfleet.checkpoint.partial import find_agent
from dreamfleet.checkpoint.snapshot import Retention, Snapshots
from dreamfleet.core.errors import BadInput, DamagedSnapshot

BFLOAT16 = ml_dtypes.bfloat16
FINITE = {
    "world/w": np.array([[-3.4e38, 3.4e38], [1e-45, 0.0]], np.float32),
    "world/half": np.array([3.3e38, -1e-38], BFLOAT16),
    "world/float16": np.array([65504.0, -6e-8], np.float16),
    "norms/ret/first": np.array(1e308, np.float64),
    "opt/1/step": np.array(2**31 - 1, np.int32),
    "acted": np.array(2**62),
    "flags": np.array([True, False]),
    "none": np.zeros((0, 3), np.float32),
}


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dreamfleet.checkpoint.snapshot._reported", set())


def add(run: Path, step: int, change: dict[str, Any] | None = None, keep: int = 9) -> Path:
    snapshots = Snapshots(run, Retention(keep=keep))
    folder = snapshots.begin(step)
    save_arrays(folder / "agent.safetensors", {**FINITE, **(change or {})})
    return snapshots.commit(step, {"updates": step})


def at(array: np.ndarray, value: float) -> np.ndarray:
    """With `value` as the last element."""
    changed = array.copy()
    changed.flat[-1] = value
    return changed


def test_numbers_at_the_ends_of_their_range_are_no_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(tmp_path, 6)
    newest = add(tmp_path, 7)
    assert Snapshots(tmp_path).latest() == newest
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "changed",
    [
        {"world/w": at(FINITE["world/w"], 1.0)},
        {"world/half": at(FINITE["world/half"], 1.0)},
        {"world/float16": at(FINITE["world/float16"], 1.0)},
        {"norms/ret/first": np.array(1.0, np.float32)},
        {"opt/1/square/w": np.zeros((3, 4), np.float32)},
        {"half scalar": np.array(1.0, BFLOAT16)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_snapshot_that_is_not_finite_is_said_and_the_one_before_it_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, np.ndarray], value: float
) -> None:
    ((name, array),) = changed.items()
    before = add(tmp_path, 6)
    newest = add(tmp_path, 7, {name: at(array, value)})
    assert Snapshots(tmp_path).latest() == before
    said = capsys.readouterr().err
    words = f"agent.safetensors is not finite in {name}"
    assert said == (f"snapshot 000000000007 is damaged and not used: {words}; 000000000006 is used instead\n")
    assert Snapshots(tmp_path).manifest()["updates"] == 6
    assert [(found.folder, found.damage) for found in Snapshots(tmp_path).damaged()] == [(newest, words)]
    assert [found.damage for found in Snapshots(tmp_path).all()] == [None, words]


def test_when_no_snapshot_is_finite_the_user_is_asked_what_to_do(tmp_path: Path) -> None:
    add(tmp_path, 7, {"world/w": np.array([np.nan])})
    with pytest.raises(DamagedSnapshot, match=r"can be used: 000000000007: agent.safetensors is not finite in world/w"):
        Snapshots(tmp_path).latest()


def test_a_new_run_begins_from_the_newest_finite_snapshot_of_another(tmp_path: Path) -> None:
    before = add(tmp_path, 6)
    newest = add(tmp_path, 7, {"opt/1/square/w": np.array([np.inf])})
    assert find_agent(tmp_path) == find_agent(before) == before
    with pytest.raises(BadInput, match=r"000000000007 is damaged: agent.safetensors is not finite in opt/1/square/w"):
        find_agent(newest)


def test_a_new_run_does_not_begin_from_a_snapshot_with_a_flipped_byte(tmp_path: Path) -> None:
    folder = add(tmp_path, 6)
    data = bytearray((folder / "agent.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "agent.safetensors").write_bytes(data)
    with pytest.raises(BadInput, match=r"agent.safetensors does not match its checksum: name another"):
        find_agent(folder)


def test_a_snapshot_passed_over_takes_no_place_of_those_that_are_kept(tmp_path: Path) -> None:
    first = add(tmp_path, 6, keep=2)
    passed_over = add(tmp_path, 7, {"world/w": np.array([np.nan])}, keep=2)
    continued = Snapshots(tmp_path, Retention(keep=2))
    assert continued.latest() == first
    save_arrays(continued.begin(9) / "agent.safetensors", FINITE)
    newest = continued.commit(9, {"updates": 9})
    assert not passed_over.exists()
    assert [found.folder for found in Snapshots(tmp_path).all()] == [first, newest]
