"""Options of the replays, from the configuration."""

from __future__ import annotations

from pathlib import Path

from dreamfleet.config.schema import Config
from dreamfleet.replay.store import ReplayOptions


def replay_options(config: Config, run_dir: Path, mode: str) -> ReplayOptions:
    """Return the options of a replay. The eval replay samples uniformly, without priorities or fresh sequences."""
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
    """Return the maximum steps and bytes of the replay of a mode (0 bytes = no limit)."""
    replay = config.replay
    if mode == "train":
        return replay.size, replay.size_bytes
    return max(replay.size // 10, config.batch_size * config.eval_sample_length), replay.size_bytes // 10
