"""Whatever becomes of a snapshot's files: it is used as it was written, or the one before it is, with one line."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.checkpoint import snapshot as snapshots_module
from dreamfleet.checkpoint.arrays import save_arrays
from dreamfleet.checkpoint.manifest import add_outside_files, checksum, outside_files, read_manifest
from dreamfleet.checkpoint.schema import FORMAT, checksum_of, find_error
from dreamfleet.checkpoint.snapshot import Retention, Snapshots
from dreamfleet.core.errors import CheckpointError, CheckpointMismatch
from support.snapshot_parts import write_parts

SLOW = [pytest.mark.slow, pytest.mark.timeout(1200)]
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 4, 10**15 + 1, 10**30, -(10**30), 0.5, 1e308, float("nan"), float("inf"), "", "2",
    "..", "../../etc/passwd", "/etc/passwd", "a/b", "a\nb", "\ud800", "x" * 5000, [], [[]], ["agent"], {}, {"": {}},
    {"../x": {"size": 1, "crc32": 1}}, {"a": 3}, {"a": {"size": -1, "crc32": 0}}, {"a": {"size": "1"}},
]  # fmt: skip


class Folder:
    """A run with two snapshots, of which the newer one is to be damaged."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.before, self.newest = self._add(6), self._add(7)
        self.files = {path: path.read_bytes() for path in self.newest.iterdir()}
        self.manifest = Snapshots(run).manifest()

    def _add(self, step: int) -> Path:
        snapshots = Snapshots(self.run, Retention(keep=9))
        write_parts(folder := snapshots.begin(step), value=step)
        save_arrays(folder / "agent.safetensors", {"weights": np.full(8, step, np.float32)})
        (self.run / "replay").mkdir(exist_ok=True)
        (self.run / "replay" / str(step)).write_bytes(b"steps")
        add_outside_files(folder, self.run, {self.run / "replay" / str(step): 5})
        facts = {"updates": step, "lost": 0, "score": 1.5, "spaces": {"actions": {"move": ["int32", []]}}}
        return snapshots.commit(step, facts, ("agent", "replay", "logger"))

    def restore(self) -> None:
        for path, data in self.files.items():
            path.write_bytes(data)

    def look(self, capsys: pytest.CaptureFixture[str]) -> Path | None:
        """Which of the two is used, and None if this version is too old for what is there."""
        snapshots_module._verified.clear()
        snapshots_module._reported.clear()
        capsys.readouterr()
        try:
            found = Snapshots(self.run).latest()
        except CheckpointMismatch as error:
            assert "\n" not in str(error)
            return None
        assert found in (self.before, self.newest)
        said = capsys.readouterr().err
        assert said.count("\n") == (found == self.before), said
        assert said == "" or said.startswith("snapshot 000000000007 is damaged and not used: ")
        assert len(said) < 2000
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize("cases", [600, pytest.param(20_000, marks=SLOW)])
def test_a_changed_file_is_never_used(folder: Folder, capsys: pytest.CaptureFixture[str], cases: int) -> None:
    rng, used = random.Random(cases), 0
    for _ in range(cases):
        path = rng.choice(list(folder.files))
        data = bytearray(folder.files[path])
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + 1] = rng.choice(
                (bytes([data[at] ^ 1 << rng.randrange(8)]), b"", bytes([rng.randrange(256)]), rng.randbytes(9))
            )
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data))]
        path.write_bytes(data)
        if folder.look(capsys) == folder.newest:
            used += 1
            assert data == folder.files[path] or path.name == "manifest.json"
            assert read_manifest(folder.newest) == folder.manifest  # blanks between its words may have changed
        path.write_bytes(folder.files[path])
    assert used < cases / 10
    assert folder.look(capsys) == folder.newest


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


def mutate(manifest: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    changed = copy.deepcopy(manifest)
    for _ in range(rng.randint(1, 2)):
        *parents, key = rng.choice(list(places(changed)))
        holder = changed
        for parent in parents:
            holder = holder[parent]
        what = rng.random()
        if what < 0.25:
            del holder[key]
        elif what < 0.35 and isinstance(holder, dict):
            holder[str(rng.choice(ODD))] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(rng.choice(ODD))
    return changed


@pytest.mark.parametrize("signed", [False, True], ids=["as it is", "with a fitting checksum"])
@pytest.mark.parametrize("cases", [600, pytest.param(10_000, marks=SLOW)])
def test_a_changed_manifest_is_never_used_unless_it_says_it_all(
    folder: Folder, capsys: pytest.CaptureFixture[str], cases: int, signed: bool
) -> None:
    """One that somebody has given a fitting checksum may be used if it has every key, of the right type."""
    rng, used = random.Random(cases), 0
    for _ in range(cases):
        manifest = mutate(folder.manifest, rng)
        if signed:
            manifest["checksum"] = checksum_of(manifest)
        (folder.newest / "manifest.json").write_text(json.dumps(manifest))
        if folder.look(capsys) == folder.newest:
            used += 1
            assert signed or manifest == folder.manifest or {"checksum", "parts"} & (folder.manifest.keys() - manifest)
            found = read_manifest(folder.newest)
            assert find_error(found) is None
            assert type(found["step"]) is type(found["updates"]) is int
            assert min(found["step"], found["updates"]) >= 0
            assert set(folder.manifest["files"]) <= set(found.get("files", folder.manifest["files"]))
    assert used < cases / 2
    folder.restore()
    assert folder.look(capsys) == folder.newest


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "7", '"x"', "{}", "[" * 200_000, '{"a":' * 200_000, "{" + '"step": 1, "step": 2' + "}",
     "9" * 10_000, '{"format": 1e999}', " " * (5 << 20), '{"format": 3}', "\ud800", "NaN"],
    ids=range(15),
)  # fmt: skip
def test_a_manifest_of_another_kind_is_damage(folder: Folder, capsys: pytest.CaptureFixture[str], text: str) -> None:
    for name in ("manifest.json", "outside.json"):
        manifest = dict(folder.manifest)
        (folder.newest / name).write_bytes(text.encode(errors="surrogatepass"))
        if name == "outside.json":  # which is checked by itself, too
            del manifest["files"]["outside.json"]
            manifest["files"]["outside.json"] = {
                "size": len(text.encode(errors="surrogatepass")),
                "crc32": checksum(folder.newest / name),
            }
            manifest["checksum"] = checksum_of(manifest)
            (folder.newest / "manifest.json").write_text(json.dumps(manifest))
        if name != "outside.json" or text != "{}":
            assert folder.look(capsys) == folder.before, name
        folder.restore()


def test_a_file_that_is_listed_twice_is_damage(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder.newest / "manifest.json"
    path.write_text(path.read_text().replace('"config.yaml"', '"agent.safetensors"'))
    text = path.read_text()
    first = text.index('"agent.safetensors": {')
    path.write_text(text[:first] + '"agent.safetensors": {"size": 1, "crc32": 1}, ' + text[first:])
    assert folder.look(capsys) == folder.before


def test_what_is_no_path_of_a_file_is_not_looked_at(tmp_path: Path) -> None:
    for name in (
        "",
        ".",
        "..",
        "../..",
        "/",
        "replay/../../x",
        "replay//x",
        "replay/",
        "./x",
        "a\nb",
        "a\0b",
        "x" * 2000,
    ):
        (tmp_path / "outside.json").write_text(json.dumps({name: 5}))
        with pytest.raises(CheckpointError, match="is no path of a file with a size"):
            outside_files(tmp_path)
    with pytest.raises(CheckpointError, match="choose one of printable characters"):
        add_outside_files(tmp_path, tmp_path / "run", {tmp_path / "else\nwhere" / "chunk": 5})


@pytest.mark.parametrize("number", [1, 2])
def test_snapshots_of_earlier_formats_are_still_used(folder: Folder, number: int) -> None:
    manifest = {key: value for key, value in folder.manifest.items() if key not in ("parts", "elsewhere", "checksum")}
    manifest["format"] = number
    if number == 1:
        manifest = {key: manifest[key] for key in ("format", "step", "updates", "time")}
    (folder.newest / "manifest.json").write_text(json.dumps(manifest))
    assert Snapshots(folder.run).latest() == folder.newest
    assert number < FORMAT


def test_an_earlier_format_allows_no_more(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = {**folder.manifest, "format": 1, "files": {"agent.safetensors": {"size": 1}}}
    (folder.newest / "manifest.json").write_text(json.dumps({**manifest, "checksum": checksum_of(manifest)}))
    assert folder.look(capsys) == folder.before


def test_a_pointer_of_any_content_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    for data in (b"\xff\xfe", b"x" * (1 << 20), b"", b"\n\n"):
        (tmp_path / "snapshots" / "latest").write_bytes(data)
        with pytest.raises(CheckpointError, match="snapshots/latest names"):
            Snapshots(tmp_path).latest()
