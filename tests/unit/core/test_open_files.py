"""The limit of open files, and errors that come from it."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys

import pytest

from dreamfleet.core.errors import CheckpointError
from dreamfleet.core.files.open_files import is_out_of_files, raise_open_files_limit, retry_without_files

SCRIPT = """
import resource
from dreamfleet.core.files.open_files import raise_open_files_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300))
raise_open_files_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_becomes_the_hard_one() -> None:
    printed = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["300", "300"]


@pytest.mark.parametrize(
    ("allowed", "reached"), [(1 << 20, 1 << 20), (300_000, 1 << 18), (10_240, 1 << 13), (100, 256)]
)
def test_a_system_without_a_hard_limit_may_allow_less_all_the_same(monkeypatch, allowed: int, reached: int) -> None:
    """As macOS does; a role must start there, too."""
    limits = [256, resource.RLIM_INFINITY]

    def setrlimit(kind: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > allowed:
            raise ValueError("current limit exceeds maximum limit")
        limits[:] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    raise_open_files_limit()
    assert limits == [reached, resource.RLIM_INFINITY]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_is_recognised_behind_another_error(number: int) -> None:
    error = CheckpointError("cannot write")
    error.__cause__ = OSError(number, os.strerror(number))
    assert is_out_of_files(error)


def test_a_native_library_says_it_in_words() -> None:
    assert is_out_of_files(ValueError("I/O error: Too many open files (os error 24)"))


def test_a_full_disk_is_something_else() -> None:
    assert not is_out_of_files(OSError(errno.ENOSPC, "No space left on device"))


def test_a_call_without_a_descriptor_is_repeated_until_there_is_one(monkeypatch) -> None:
    monkeypatch.setattr("dreamfleet.core.files.open_files.RETRY_S", 0.0)
    tries: list[int] = []

    def call() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.EMFILE, "Too many open files")

    retry_without_files(call, 20.0)
    assert len(tries) == 3
    with pytest.raises(OSError, match="Too many"):
        retry_without_files(fail, 0.0)


def fail() -> None:
    raise OSError(errno.EMFILE, "Too many open files")
