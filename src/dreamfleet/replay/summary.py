"""What a saved replay holds, from its index and the few small columns that tell: images and latents are not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from dreamfleet.replay.files import ChunkName
from dreamfleet.replay.persistence import STEPS

BINS = 10
FLAGS = ("is_first", "is_last", "reward")


@dataclass
class ReplaySummary:
    """`returns` are those of whole episodes: neither cut off by eviction nor still going on."""

    steps: int = 0
    streams: int = 0
    bytes_on_disk: int = 0
    chunks_damaged: int = 0
    returns: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "episodes": len(self.returns),
            "streams": self.streams,
            "bytes_on_disk": self.bytes_on_disk,
            "chunks_damaged": self.chunks_damaged,
            "returns": describe_returns(np.array(self.returns)),
        }


def summarize(folder: Path, index: Mapping[str, np.ndarray]) -> ReplaySummary:
    """`index` is what the replay's `save` returned, `folder` where its chunk files lie."""
    summary = ReplaySummary()
    summary.bytes_on_disk = sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
    chunks = sorted(index["chunks"].tolist()) if "chunks" in index else []
    for _, rows in groupby(chunks, key=lambda row: row[0]):
        summary.streams += 1
        for run in _runs(folder, rows, summary):
            summary.returns += episode_returns(run["is_first"], run["is_last"], run["reward"]).tolist()
    return summary


def episode_returns(is_first: np.ndarray, is_last: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """Returns of the episodes that begin and end within these consecutive steps."""
    begins, ends = np.flatnonzero(is_first), np.flatnonzero(is_last)
    following = np.append(begins[1:], len(is_first))
    place = np.searchsorted(ends, begins)
    whole = place < len(ends)
    begins, following, ends = begins[whole], following[whole], ends[place[whole]]
    sums = np.concatenate([[0.0], np.cumsum(reward, dtype=np.float64)])
    own = ends < following  # an episode that was abandoned has no end of its own
    return np.asarray(sums[ends[own] + 1] - sums[begins[own]])


def describe_returns(returns: np.ndarray) -> dict[str, Any]:
    if not len(returns):
        return {"counts": [], "edges": []}
    counts, edges = np.histogram(returns, BINS)
    numbers = {"min": returns.min(), "mean": returns.mean(), "max": returns.max()}
    return {"counts": counts.tolist(), "edges": edges.tolist(), **{name: float(x) for name, x in numbers.items()}}


def _runs(folder: Path, rows: Iterator[list[int]], summary: ReplaySummary) -> Iterator[dict[str, np.ndarray]]:
    """A stream's steps, cut where a chunk is missing."""
    parts: list[dict[str, np.ndarray]] = []
    expected = None
    for stream, start, length, _ in rows:
        chunk = _read(folder / ChunkName(stream, start, STEPS, length).file())
        if parts and (chunk is None or start != expected):
            yield _join(parts)
            parts = []
        if chunk is None:
            summary.chunks_damaged += 1
            continue
        summary.steps += length
        parts.append(chunk)
        expected = start + length
    if parts:
        yield _join(parts)


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {key: np.concatenate([part[key] for part in parts]) for key in FLAGS}


def _read(path: Path) -> dict[str, np.ndarray] | None:
    try:
        with safe_open(path, framework="numpy") as file:
            return {key: file.get_tensor(key) for key in FLAGS}
    except (OSError, SafetensorError):
        return None
