"""A whole fleet in lock step in the test's own thread, with the counting agent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.replay.stream import ReplayStream
from dreamfleet.roles.lockstep.role import SingleParts, SingleRole
from support import counting
from support.fakes import make_context

BATCH, LENGTH, CONTEXT, ENVS = counting.BATCH, counting.LENGTH, counting.CONTEXT, 3


def make_role(folder: Path, agent: Any = None, make_env: Any = counting.make_env_train, **changes: Any) -> SingleRole:
    args = FleetArgs(
        **{
            "logdir": str(folder),
            "script": "single",
            "envs": ENVS,
            "eval_envs": 2,
            "batch_size": BATCH,
            "batch_length": LENGTH,
            "report_length": counting.REPORT_LENGTH,
            "replay_context": CONTEXT,
            "train_ratio": 5.0,
            "log_every_steps": 50,
            "report_every_steps": 100,
            **changes,
        }
    )
    parts = SingleParts(
        agent=agent or counting.make_agent(),
        replay_train=counting.make_replay(LENGTH * args.consec_train + CONTEXT, folder / "replay" / "train"),
        replay_eval=counting.make_replay(counting.REPORT_LENGTH + CONTEXT, folder / "replay" / "eval"),
        make_stream=partial(make_stream, args),
        logger=counting.make_logger(folder),
        make_env_train=make_env,
        make_env_eval=counting.make_env_eval,
    )
    return SingleRole(parts, args, make_context("single")[0])


def make_stream(args: FleetArgs, replay: Any, mode: str) -> ReplayStream:
    length, consec = (LENGTH, args.consec_train) if mode == "train" else (counting.REPORT_LENGTH, 1)
    return ReplayStream(replay, mode, BATCH, length, consec, CONTEXT)
