"""A snapshot that is not what its manifest says is found, said and passed over; nothing is overwritten."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dreamfleet.checkpoint.manifest import add_outside_files
from dreamfleet.checkpoint.snapshot import Retention, Snapshots
from dreamfleet.core.errors import BadInput, CheckpointError, DamagedSnapshot
from support.replays import fill, make_store
from support.snapshot_parts import write_parts


def add(run: Path, step: int, chunk: str = "") -> Path:
    snapshots = Snapshots(run, Retention(keep=9))
    folder = snapshots.begin(step)
    (folder / "agent.safetensors").write_bytes(b"weights of %d" % step)
    (folder / "logger.safetensors").write_bytes(b"counts of %d" % step)
    if chunk:
        (run / "replay").mkdir(exist_ok=True)
        (run / "replay" / chunk).write_bytes(b"steps")
        add_outside_files(folder, run, {run / "replay" / chunk: 5})
    return snapshots.commit(step, {"updates": step})


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def everything(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("agent.safetensors", flip, "agent.safetensors does not match its checksum"),
        ("agent.safetensors", cut, "agent.safetensors has 11 bytes instead of 12"),
        ("logger.safetensors", Path.unlink, "logger.safetensors is missing"),
        ("manifest.json", Path.unlink, "cannot read its manifest.json"),
        ("manifest.json", cut, "cannot read its manifest.json"),
        ("../../replay/7", Path.unlink, "replay/7 is missing"),
        ("../../replay/7", cut, "replay/7 has 4 bytes instead of 5"),
    ],
)
def test_a_damaged_snapshot_is_said_and_the_one_before_it_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Callable[[Path], None], words: str
) -> None:
    before, newest = add(tmp_path, 6, "6"), add(tmp_path, 7, "7")
    assert Snapshots(tmp_path).latest() == newest
    damage(newest / name)
    left = everything(tmp_path)
    assert Snapshots(tmp_path).latest() == before
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"snapshot 000000000007 is damaged and not used: {words}" in said
    assert "000000000006 is used instead" in said
    assert Snapshots(tmp_path).manifest()["updates"] == 6
    assert [(found.folder, words in (found.damage or "")) for found in Snapshots(tmp_path).damaged()] == [
        (newest, True)
    ]
    assert everything(tmp_path) == left
    assert capsys.readouterr().err == ""  # it was said


def test_the_cheap_look_finds_all_but_a_flipped_byte_and_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, newest = add(tmp_path, 6), add(tmp_path, 7)
    assert Snapshots(tmp_path).newest() == newest
    cut(newest / "agent.safetensors")
    assert Snapshots(tmp_path).newest() == before
    assert capsys.readouterr().err == ""
    assert Snapshots(tmp_path / "elsewhere").newest() is None


def test_files_stay_that_a_damaged_snapshot_or_one_in_progress_needs(tmp_path: Path) -> None:
    _, second, third = (add(tmp_path, 10 * number, str(number)) for number in (1, 2, 3))
    (second / "manifest.json").unlink()
    cut(third / "outside.json")  # nobody knows what it needs
    pending = Snapshots(tmp_path).begin(40)
    add_outside_files(pending, tmp_path, {tmp_path / "replay" / "4": 5})
    assert {path.name for path in Snapshots(tmp_path).outside_files()} == {"1", "2", "4"}


def test_a_disk_without_room_for_a_folder_costs_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / "snapshots").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"cannot begin snapshot .*: free some space there"):
        Snapshots(tmp_path).begin(10)


def test_when_none_can_be_used_the_user_is_asked_what_to_do(tmp_path: Path) -> None:
    for step in (6, 7):
        flip(add(tmp_path, step) / "agent.safetensors")
    left = everything(tmp_path)
    with pytest.raises(DamagedSnapshot, match=r"000000000007: agent.safetensors does not match.*start over") as raised:
        Snapshots(tmp_path).latest()
    assert isinstance(raised.value, BadInput)
    assert everything(tmp_path) == left


def test_when_all_lack_a_file_elsewhere_the_newest_of_them_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tmp_path, 6, "shared")
    newest = add(tmp_path, 7, "shared")
    (tmp_path / "replay" / "shared").unlink()
    assert Snapshots(tmp_path).latest() == newest
    assert "replay/shared is missing; no other is complete" in capsys.readouterr().err


def test_a_snapshot_without_checksums_is_still_read(tmp_path: Path) -> None:
    folder = add(tmp_path, 6)
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "step": 6, "updates": 5, "time": 0.0}))
    assert Snapshots(tmp_path).latest() == Snapshots(tmp_path).newest() == folder
    assert Snapshots(tmp_path).manifest()["updates"] == 5


def test_a_newer_format_is_refused_even_where_an_older_one_is_there(tmp_path: Path) -> None:
    add(tmp_path, 6)
    newest = add(tmp_path, 7)
    (newest / "manifest.json").write_text(json.dumps({"format": 4, "step": 7}))
    left = everything(tmp_path)
    for look in (Snapshots(tmp_path).latest, Snapshots(tmp_path).newest, Snapshots(tmp_path).manifest):
        with pytest.raises(BadInput, match="has format 4, this version of dreamfleet reads up to 3"):
            look()
    assert everything(tmp_path) == left


def test_a_snapshot_that_could_not_be_used_goes_with_the_next_commit(tmp_path: Path) -> None:
    add(tmp_path, 6)
    flip(add(tmp_path, 9) / "agent.safetensors")
    assert Snapshots(tmp_path).latest() == tmp_path / "snapshots" / "000000000006"
    add(tmp_path, 8)
    assert Snapshots(tmp_path).latest() == tmp_path / "snapshots" / "000000000008"
    assert not (tmp_path / "snapshots" / "000000000009").exists()


def test_a_snapshot_that_vanishes_while_it_is_looked_at_is_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = add(tmp_path, 6)
    verify = Snapshots._verify

    def replaced(self: Snapshots, snapshot: object) -> object:
        if newest.is_dir():
            shutil.rmtree(newest)
            add(tmp_path, 7)
        return verify(self, snapshot)  # type: ignore[arg-type]

    monkeypatch.setattr(Snapshots, "_verify", replaced)
    assert Snapshots(tmp_path).latest() == tmp_path / "snapshots" / "000000000007"
    assert capsys.readouterr().err == ""


def test_a_snapshot_cut_off_at_any_byte_is_never_used(tmp_path: Path) -> None:
    """As after a power cut: the folder has its name, and its files hold what came before some byte."""
    before, newest = add(tmp_path, 6), add(tmp_path, 7)
    whole = {
        name: (newest / name).read_bytes() for name in ("agent.safetensors", "logger.safetensors", "manifest.json")
    }
    total = sum(map(len, whole.values()))
    for count in random.Random(7).sample(range(total), 50):
        left = count
        for name, data in whole.items():
            (newest / name).write_bytes(data[:left])
            left = max(0, left - len(data))
        assert Snapshots(tmp_path).latest() == Snapshots(tmp_path).newest() == before, count
    (newest / "manifest.json").write_bytes(whole["manifest.json"])
    assert Snapshots(tmp_path).latest() == newest


def test_replay_files_may_lie_outside_of_the_run_folder(tmp_path: Path) -> None:
    """As with a replay that a script makes, and in snapshots of before, which name them from the run folder."""
    run, scratch = tmp_path / "run", tmp_path / "scratch"
    scratch.mkdir()
    snapshots = Snapshots(run)
    folder = snapshots.begin(10)
    write_parts(folder)
    (scratch / "chunk").write_bytes(b"steps")
    add_outside_files(folder, run, {scratch / "chunk": 5})
    newest = snapshots.commit(10, {"updates": 1})
    assert Snapshots(run).latest() == newest
    assert Snapshots(run).outside_files() == {scratch / "chunk"}
    manifest = json.loads((newest / "manifest.json").read_text())
    (newest / "outside.json").write_text('{"../scratch/chunk": 5}')
    del manifest["files"]["outside.json"], manifest["checksum"], manifest["parts"], manifest["elsewhere"]
    data = (newest / "outside.json").read_bytes()
    manifest["files"]["outside.json"] = {"size": len(data), "crc32": zlib.crc32(data)}
    (newest / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))
    assert Snapshots(run).all()[0].damage is None
    cut(scratch / "chunk")
    assert "scratch/chunk has 4 bytes instead of 5" in str(Snapshots(run).all()[0].damage)


def test_a_run_folder_behind_a_link_is_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    files = tmp_path / "real" / "replay"
    store = make_store(2, 20, files, chunksize=4)
    fill(store, 1, 10)
    store.save()
    snapshots = Snapshots(link)
    add_outside_files(snapshots.begin(10), link, store.saved_files())
    needed = snapshots.outside_files()
    assert {path.parent for path in needed} == {link / "replay"}
    store.keep_files(needed)
    assert {name.file() for name in store._persistence._others} == {path.name for path in needed}  # type: ignore[union-attr]
    store.close()
