"""Another run's agent, in full or in part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dreamfleet.checkpoint.arrays import save_arrays
from dreamfleet.checkpoint.partial import find_agent, merge
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.core.errors import BadInput

OTHER = {"world/dyn/w": np.ones((2, 2)), "world/enc/w": np.ones(3), "world/old": np.ones(1), "acted": np.array(9)}
MINE = {"world/dyn/w": np.zeros((2, 2)), "world/enc/w": np.zeros(4), "world/new": np.zeros(1), "acted": np.array(0)}


@pytest.fixture
def other(tmp_path: Path) -> Path:
    snapshots = Snapshots(tmp_path)
    save_arrays(snapshots.begin(5) / "agent.safetensors", OTHER)
    return snapshots.commit(5, {"updates": 1})


def test_what_matches_and_fits_is_taken_and_all_the_rest_is_named(other: Path) -> None:
    arrays, report = merge(MINE, other, "world/")
    assert report.taken == ["world/dyn/w"]
    assert report.skipped == ["acted"]
    assert report.mismatched == [
        "world/enc/w is (3,) there and (4,) here",
        "world/new is only here",
        "world/old is only there",
    ]
    assert arrays.keys() == MINE.keys()
    assert arrays["world/dyn/w"].tolist() == [[1, 1], [1, 1]]
    assert (arrays["acted"], arrays["world/enc/w"].tolist()) == (0, [0, 0, 0, 0])
    assert "1 arrays loaded; 1 skipped, which do not match the pattern; 3 mismatched: world/enc" in report.text(other)


def test_all_of_it_is_the_default(other: Path) -> None:
    arrays, report = merge(OTHER, other, ".*")
    assert sorted(report.taken) == sorted(OTHER)
    assert not report.skipped + report.mismatched
    assert all((arrays[key] == OTHER[key]).all() for key in OTHER)


@pytest.mark.parametrize(
    ("pattern", "words"), [("critic", "names look like acted, world/dyn/w"), ("enc", "world/enc/w is .* check agent")]
)
def test_when_nothing_matches_it_is_refused(other: Path, pattern: str, words: str) -> None:
    with pytest.raises(BadInput, match=f"nothing of .* can be loaded .*{pattern}.*: {words}"):
        merge(MINE, other, pattern)


def test_a_run_folder_stands_for_its_newest_snapshot(other: Path, tmp_path: Path) -> None:
    assert find_agent(tmp_path) == find_agent(other) == other


def test_a_folder_without_an_agent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no such folder"):
        find_agent(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="holds no agent"):
        find_agent(tmp_path)
