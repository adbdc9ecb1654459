"""After a loss of power the run folder holds a whole snapshot: what was not synced may be gone, in any mixture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dreamfleet.checkpoint import manifest
from dreamfleet.core.files import disk
from dreamfleet.replay.files import ChunkFiles
from power_loss import cut_power


@pytest.mark.parametrize(
    ("cuts", "snapshots"), [(40, 5), pytest.param(1000, 40, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_after_any_cut_a_whole_snapshot_is_found(tmp_path: Path, cuts: int, snapshots: int) -> None:
    found = cut_power(cuts, snapshots, cuts, tmp_path)
    print(found)
    assert found["damaged"] == 0, found["problems"]
    assert found["snapshots"] >= snapshots


def _nothing(*_: Any) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name"),
    [(manifest, "sync"), (disk, "sync"), (ChunkFiles, "sync"), (ChunkFiles, "saved")],
    ids=["files of a snapshot", "folders and manifests", "chunks", "names of chunks"],
)
def test_a_sync_that_is_left_out_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Otherwise the test above would prove little."""
    left_out: Callable[..., None] = _nothing
    if name == "saved":

        def left_out(self: ChunkFiles) -> None:
            self._next, self._saving = self._saving, set()

    monkeypatch.setattr(owner, name, left_out)
    assert cut_power(40, 4, 1, tmp_path)["damaged"] > 0
