"""The folder of local sockets: removed with its owner, or at the next start if the owner was killed."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.runs.socket_folder import OWNER_FILE, SocketFolder, remove_leftovers

KILLED = """
import os, signal, socket
from dreamfleet.runs.socket_folder import SocketFolder

folder = SocketFolder()
socket.socket(socket.AF_UNIX).bind(str(folder.path / "actor"))
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert len(str(folder)) < 60
    return folder


@pytest.fixture
def left(runtime: Path) -> Path:
    """The folder of a process that was killed."""
    killed = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    folder = Path(killed.stdout.strip())
    assert folder.parent == runtime
    assert {path.name for path in folder.iterdir()} == {"actor", OWNER_FILE}
    return folder


def test_the_next_run_removes_the_sockets_of_a_killed_one(left: Path, tmp_path: Path) -> None:
    with RunFolder(tmp_path):
        assert not left.exists()


def test_a_folder_whose_owner_lives_stays(runtime: Path) -> None:
    with SocketFolder() as folder:
        remove_leftovers()
        assert folder.path.is_dir()
    assert not folder.path.exists()


def test_a_folder_that_is_being_made_stays(runtime: Path) -> None:
    with SocketFolder() as folder:
        (folder.path / OWNER_FILE).rename(folder.path / f"{OWNER_FILE}.new")
        remove_leftovers()
        assert folder.path.is_dir()


@pytest.mark.parametrize("name", ["notes.txt", "actor.d/notes.txt"])
def test_a_folder_that_holds_something_else_stays_as_it_is(left: Path, name: str) -> None:
    (left / name).parent.mkdir(exist_ok=True)
    (left / name).write_text("mine")
    remove_leftovers()
    assert (left / name).read_text() == "mine"
    assert (left / "actor").is_socket()


def test_a_run_folder_of_that_name_stays(runtime: Path) -> None:
    run = runtime / "dreamfleet-run"
    with RunFolder(run):
        pass
    run.chmod(0o700)
    before = sorted(run.iterdir())
    remove_leftovers()
    assert sorted(run.iterdir()) == before


def test_what_is_not_private_to_the_user_stays(left: Path) -> None:
    left.chmod(0o755)
    remove_leftovers()
    assert left.is_dir()


def test_links_are_not_followed(left: Path, runtime: Path) -> None:
    moved = left.rename(runtime / "elsewhere")
    (runtime / "dreamfleet-link").symlink_to(moved)
    remove_leftovers()
    assert (moved / "actor").is_socket()
    mine = runtime / "dreamfleet-mine"
    mine.mkdir(mode=0o700)
    (mine / OWNER_FILE).symlink_to(moved / OWNER_FILE)
    remove_leftovers()
    assert mine.is_dir()


def test_a_socket_in_use_elsewhere_is_not_touched(runtime: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(runtime / "other"))
        remove_leftovers()
        assert (runtime / "other").is_socket()
