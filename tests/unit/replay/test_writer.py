"""The writer's thread outlives every error of its jobs, and nothing that it could not write is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dreamfleet.core.errors import ReplayError
from dreamfleet.replay.files import ChunkFiles
from dreamfleet.replay.writer import Writer
from support.replays import fill, make_store, wait_for_writes, windows_of

WAIT_S = 10.0


def failing(error: Exception) -> Callable[[], None]:
    def job() -> None:
        raise error

    return job


def test_a_job_after_one_that_failed_in_an_unforeseen_way_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    writer, done = Writer(), []
    for number in range(3):
        writer.submit(failing(KeyError("chunk 7")))
        writer.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    writer.submit(failing(ZeroDivisionError("by zero")))
    writer.wait(WAIT_S)
    writer.close()
    assert (done, writer.errors) == ([0, 1, 2], 4)
    said = capsys.readouterr().err
    assert said.count("Traceback") == 2  # once for each kind
    assert said.count("KeyError: 'chunk 7'") == 1
    assert said.count("ZeroDivisionError: by zero") == 1


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer()
    for error in (ReplayError("no space left"), OSError("read-only"), ReplayError("no space left")):
        writer.submit(failing(error))
    writer.wait(WAIT_S)
    writer.close()
    assert writer.errors == 3
    assert capsys.readouterr().err == "replay is not being written to disk: no space left\n"


def test_a_chunk_that_could_not_be_written_for_an_unforeseen_reason_is_in_the_next_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write = make_store(3, 100, tmp_path, chunksize=8), ChunkFiles.write

    def broken(self: ChunkFiles, name: object, arrays: object) -> None:
        raise TypeError("not an array")

    monkeypatch.setattr(ChunkFiles, "write", broken)
    fill(store, 1, 20)
    wait_for_writes(store)
    assert store.stats()["write_errors"] == 2
    with pytest.raises(TypeError, match="not an array"):
        store.save()
    monkeypatch.setattr(ChunkFiles, "write", write)
    fill(store, 1, 20, start=20)
    saved = store.save()
    store.committed()
    wait_for_writes(store)
    store.close()
    restored = make_store(3, 100, tmp_path, chunksize=8)
    restored.load(saved)
    assert windows_of(restored) == [(1, t) for t in range(38)]
    assert np.unique(restored.sample(1000, "train")["value"]).tolist() == list(range(1000, 1040))
    restored.close()
