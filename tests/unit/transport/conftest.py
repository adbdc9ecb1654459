"""Sockets in a short temporary folder, and a check that nothing outlives a test."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dreamfleet.transport.security import create_keys


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder for socket files; pytest's own is too deep for the 107 bytes of a Unix socket path."""
    folder = Path(tempfile.mkdtemp(prefix="df-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def address(sockets: Path) -> str:
    return f"ipc://{sockets}/server"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    create_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    # PyZMQ starts one thread per process to release memory it has sent without copying, and keeps it.
    left = [t for t in set(threading.enumerate()) - before if type(t).__name__ != "GarbageCollectorThread"]
    assert not left


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Waits for a condition nobody signals, and fails the test if it does not come true."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true within 10 s"
            threading.Event().wait(0.002)

    return wait
