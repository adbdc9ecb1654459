"""A fleet file that its run has not written is refused before anything of it is used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dreamfleet.core.errors import BadInput, SecurityError
from dreamfleet.launch.fleet_signature import FLEET_FORMAT, READERS, read_signed, sign
from dreamfleet.transport.security import create_keys

FLEET = {"format": FLEET_FORMAT, "args": {"steps": 1e6, "envs": (1, 2)}, "config": {"env": {"name": "dummy"}, 5: None}}
CHANGED = "was modified or does not belong to keys/worker.json: copy both again from the run folder"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_keys(tmp_path / "keys")
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(sign(FLEET, tmp_path / "keys"), indent=2))
    return path


@pytest.mark.parametrize("key", READERS)
def test_a_file_reads_as_it_was_written_with_the_key_of_its_reader_alone(path: Path, tmp_path: Path, key: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "keys").mkdir(parents=True)
    shutil.copy(path, elsewhere)
    shutil.copy(tmp_path / "keys" / f"{key}.json", elsewhere / "keys")
    assert read_signed(elsewhere / "fleet.json", key) == json.loads(json.dumps(FLEET))


def rename_env(fleet: dict[str, Any]) -> None:
    fleet["config"]["env"]["name"] = "evil:make"


def add_key(fleet: dict[str, Any]) -> None:
    fleet["more"] = 1


def drop_signatures(fleet: dict[str, Any]) -> None:
    del fleet["signatures"]


def take_anothers(fleet: dict[str, Any]) -> None:
    fleet["signatures"]["worker"] = fleet["signatures"]["replay"]


def sign_with_a_number(fleet: dict[str, Any]) -> None:
    fleet["signatures"]["worker"] = 1


def sign_with_a_list(fleet: dict[str, Any]) -> None:
    fleet["signatures"] = ["worker"]


def sign_beyond_ascii(fleet: dict[str, Any]) -> None:
    fleet["signatures"]["worker"] = "\u00e9"


@pytest.mark.parametrize(
    "change",
    [rename_env, add_key, drop_signatures, take_anothers, sign_with_a_number, sign_with_a_list, sign_beyond_ascii],
)
def test_a_changed_or_unsigned_file_is_refused(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    fleet = json.loads(path.read_text())
    change(fleet)
    path.write_text(json.dumps(fleet))
    with pytest.raises(SecurityError, match=CHANGED):
        read_signed(path, "worker")


def test_the_file_of_another_run_is_refused(path: Path, tmp_path: Path) -> None:
    create_keys(tmp_path / "other" / "keys")
    shutil.copy(path, tmp_path / "other")
    with pytest.raises(SecurityError, match=CHANGED):
        read_signed(tmp_path / "other" / "fleet.json", "worker")


def test_a_file_of_an_earlier_version_is_refused_with_what_to_do(path: Path) -> None:
    path.write_text(json.dumps({**FLEET, "format": 1}))
    with pytest.raises(BadInput, match=r"earlier version and is not signed: .*fleet\.json and keys/worker\.json"):
        read_signed(path, "worker")


def test_without_the_key_nothing_is_read(path: Path, tmp_path: Path) -> None:
    (tmp_path / "keys" / "worker.json").unlink()
    with pytest.raises(SecurityError, match=r"cannot read key .*: copy keys/worker\.json of the run folder there"):
        read_signed(path, "worker")


def test_a_file_that_is_nested_too_deeply_is_bad_input(path: Path) -> None:
    path.write_text("[" * 100_000)
    with pytest.raises(BadInput, match="cannot read the fleet file"):
        read_signed(path, "worker")
