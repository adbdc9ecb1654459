"""A replay role whose handlers a test calls directly, and steps for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.interfaces import Arrays, Replay
from dreamfleet.replay.store import ReplayOptions, ReplayStore
from dreamfleet.replay.stream import ReplayStream
from dreamfleet.roles.replay import ReplayRole


def make_role(logdir: Path, **args: Any) -> ReplayRole:
    """Batches of 2 windows with 4 steps and one of context: the limiter opens at 10 steps."""
    shape = {"batch_size": 2, "batch_length": 4, "replay_context": 1, "train_ratio": 4.0, "wait_timeout_s": 0.01}
    flat = FleetArgs(logdir=logdir, **{**shape, **args})

    def make_stream(replay: Replay, mode: str) -> ReplayStream:
        return ReplayStream(replay, mode, flat.batch_size, flat.batch_length, flat.consec_train, flat.replay_context)

    length = flat.batch_length * flat.consec_train + flat.replay_context
    shared = {"length": length, "capacity": 100, "context": flat.replay_context}
    train = ReplayStore(ReplayOptions(**shared, folder=logdir / "train"))
    evaluation = ReplayStore(ReplayOptions(**shared, folder=logdir / "eval", seed=1))
    return ReplayRole(train, evaluation, make_stream, flat)


def steps(values: list[int], stream: int = 1) -> Arrays:
    """One step of each of several streams, numbered from `stream` on."""
    return {
        "stream": stream + np.arange(len(values)),
        "value": np.array(values),
        "dyn/value": np.array(values, np.float32),
        "is_first": np.zeros(len(values), bool),
        "is_last": np.zeros(len(values), bool),
    }


def fill(role: ReplayRole, count: int, start: int = 0) -> None:
    for value in range(start, start + count):
        role.add_batch(steps([value]))
