"""What the configuration means for the replays of a run."""

from __future__ import annotations

from pathlib import Path

from dreamfleet.config.schema import Config
from dreamfleet.replay.store import ReplayOptions


def replay_options(config: Config, run_dir: Path, mode: str) -> ReplayOptions:
    """What the agent never trains on gets no priorities and need not be fresh: the eval replay draws uniformly."""
    replay = config.replay
    training = mode == "train"
    length = config.sample_length if training else config.eval_sample_length
    size, size_bytes = replay_share(config, mode)
    return ReplayOptions(
        length=length,
        capacity=size,
        context=config.replay_context,
        size_bytes=size_bytes,
        chunksize=replay.chunksize,
        online=replay.online and training,
        fracs=replay.fracs.model_dump() if training else {"uniform": 1.0},
        recency_exponent=replay.recexp,
        priority=replay.prio.model_dump(),
        seed=config.seed + (not training),
        folder=run_dir / "replay" / mode,
    )


def replay_share(config: Config, mode: str) -> tuple[int, int]:
    """Steps and bytes that the replay of a mode may hold; 0 bytes: no limit."""
    replay = config.replay
    if mode == "train":
        return replay.size, replay.size_bytes
    return max(replay.size // 10, config.batch_size * config.eval_sample_length), replay.size_bytes // 10
