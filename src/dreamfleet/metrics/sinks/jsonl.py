"""Metrics and episodes as lines of JSON in the run folder."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dreamfleet.metrics.values import MARKS

KEPT_BYTES = 16 << 20  # of lines that could not be written yet
TAIL_BYTES = 1 << 20


def _ignore(text: str) -> None: ...


class JsonlSink:
    """Appends one object per line at once, so that a reader or a crash never finds half a line but the last.

    These files are the record of a run. Lines that cannot be written, as on a full disk, are reported once, kept, and
    retried with the next line. A file that ends in half a line is continued after its last whole one.
    """

    def __init__(self, path: Path, tell: Callable[[str], None] = _ignore) -> None:
        self._path = path
        self._tell = tell
        self._rest = bytearray()  # begins where the file ends
        self._troubled = False
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_half_line(path)
        self._file = path.open("ab", buffering=0)

    def write(self, row: Mapping[str, Any]) -> None:
        plain = {key: _plain(value) for key, value in row.items() if np.ndim(value) == 0}
        if not plain.keys() - MARKS and row.keys() - MARKS:
            return  # it holds nothing but what JSON has no place for
        if len(self._rest) < KEPT_BYTES:
            self._rest += json.dumps(plain).encode() + b"\n"
        self._flush()

    def close(self) -> None:
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        try:
            while self._rest:
                del self._rest[: os.write(self._file.fileno(), self._rest)]
        except OSError as error:
            if not self._troubled:
                self._troubled = True
                self._tell(f"cannot write {self._path.name}, training goes on and it is tried again: {error.strerror}")
        else:
            self._troubled = False


def last_step(path: Path) -> int:
    """Of the last whole line; 0 without one."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    return next((step for line in reversed(lines) if (step := _step(line)) is not None), 0)


def move_newer_aside(path: Path, step: int) -> int:
    """Moves lines of later steps into `<name>.lost.jsonl`, for a run that goes back to `step`; returns how many.

    Lines come in the order of their steps, so these are the last ones. They are safe in the other file before they
    leave this one.
    """
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        start, lost = _first_newer(file, step)
        if start is None:
            return 0
        file.seek(start)
        with path.with_name(f"{path.stem}.lost.jsonl").open("ab") as aside:
            shutil.copyfileobj(file, aside)
            aside.flush()
            os.fsync(aside.fileno())
        file.truncate(start)
    return lost


def _first_newer(file: BinaryIO, step: int) -> tuple[int | None, int]:
    """Where the first line of a later step begins, and how many lines there are from it on."""
    start, lost, place = None, 0, 0
    for line in file:
        found = _step(line)
        if start is None and found is not None and found > step:
            start = place
        lost += start is not None
        place += len(line)
    return start, lost


def _step(line: bytes) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # a line that somebody else wrote
        return None


def _cut_half_line(path: Path) -> None:
    """Of a run that was killed, or whose disk was full until its end."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        tail = file.read()
        file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)


def _plain(value: Any) -> Any:
    """NumPy scalars as Python ones; JSON has no NaN or infinity, so they become null."""
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
