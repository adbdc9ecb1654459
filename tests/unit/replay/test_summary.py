"""What a saved replay is said to hold."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.replay.store import ReplayOptions, ReplayStore
from dreamfleet.replay.summary import describe_returns, episode_returns, summarize


def flags(text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`f` first, `l` last, `.` in between; the reward of step n is 10 ** n."""
    first, last = np.array([c == "f" for c in text]), np.array([c == "l" for c in text])
    return first, last, 10.0 ** np.arange(len(text))


@pytest.mark.parametrize(
    ("text", "returns"),
    [
        ("f.l", [111.0]),
        ("f.lfl", [111.0, 11000.0]),
        ("..lf.l", [111000.0]),  # the first one's beginning was evicted
        ("f.lf..", [111.0]),  # the second one goes on
        ("f.f.l", [11100.0]),  # the first one was abandoned
        ("f..", []),
        ("...", []),
    ],
)
def test_returns_are_those_of_whole_episodes(text, returns):
    np.testing.assert_allclose(episode_returns(*flags(text)), returns)


def test_returns_are_described_by_a_histogram():
    described = describe_returns(np.arange(20.0))
    assert described["counts"] == [2] * 10
    assert described["edges"][0] == 0.0
    assert described["edges"][-1] == 19.0
    assert (described["min"], described["mean"], described["max"]) == (0.0, 9.5, 19.0)
    assert describe_returns(np.zeros(0)) == {"counts": [], "edges": []}


def saved(folder, steps: int = 40) -> dict[str, np.ndarray]:
    """Two streams with episodes of 10 steps; rewards are 1 in stream 5 and 2 in stream 6."""
    store = ReplayStore(ReplayOptions(length=3, capacity=1000, chunksize=8, folder=folder))
    for step in range(steps):
        rows = {"stream": np.array([5, 6]), "reward": np.array([1.0, 2.0], np.float32)}
        rows["is_first"] = np.full(2, step % 10 == 0)
        rows["is_last"] = np.full(2, step % 10 == 9)
        store.add_batch(rows)
    index = store.save()
    store.close()
    return index


def test_a_saved_replay_is_summarized_across_chunks(tmp_path):
    summary = summarize(tmp_path, saved(tmp_path, 45))
    assert (summary.steps, summary.streams, summary.chunks_damaged) == (90, 2, 0)
    assert sorted(summary.returns) == [10.0] * 4 + [20.0] * 4
    assert summary.bytes_on_disk == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert summary.to_json()["episodes"] == 8


def test_a_missing_chunk_costs_its_steps_and_the_episodes_it_was_part_of(tmp_path):
    index = saved(tmp_path)
    (tmp_path / "5-16-steps-8.safetensors").unlink()  # steps 16 to 23, of the second and third episode
    summary = summarize(tmp_path, index)
    assert (summary.steps, summary.chunks_damaged) == (72, 1)
    assert sorted(summary.returns) == [10.0] * 2 + [20.0] * 4


def test_an_empty_replay_holds_nothing(tmp_path):
    summary = summarize(tmp_path / "none", saved(tmp_path, 0))
    assert (summary.steps, summary.streams, summary.bytes_on_disk, summary.returns) == (0, 0, 0, [])
