"""A fleet of counting environments in which one side is slow, and roles wait for no longer than a moment.

Roles are made only once those that they call are ready: the short deadline is then one of the training, not the start.
"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

from dreamfleet import parallel
from dreamfleet.checkpoint.snapshot import Snapshots
from support import counting
from support.fleet_probe import events_of, wait_until

READY_S = 60.0


class SlowEnv(counting.CountingEnv):
    def __init__(self, index: int, step_s: float) -> None:
        super().__init__(index)
        self._step_s = step_s

    def step(self, action: Any) -> dict[str, Any]:
        threading.Event().wait(self._step_s)
        return super().step(action)


class SlowAgent(counting.CountingAgent):
    def __init__(self, update_s: float) -> None:
        super().__init__(apart=False)
        self._update_s = update_s

    def train(self, carry: Any, batch: Any) -> Any:
        threading.Event().wait(self._update_s)
        return super().train(carry, batch)


def run_fleet(run: Path, step_s: float, update_s: float, **args: Any) -> dict[str, Any]:
    """Runs it to its end and returns the manifest of its last snapshot."""
    shape = {"batch_size": counting.BATCH, "batch_length": counting.LENGTH, "replay_context": counting.CONTEXT}
    both = {"report_length": counting.REPORT_LENGTH, "eval_envs": 0, "eval_apart": False, "log_every": 0}
    parallel.combined(
        partial(_make_agent, run, update_s),
        partial(counting.make_replay, counting.LENGTH + counting.CONTEXT, run / "replay" / "train"),
        partial(counting.make_replay, counting.REPORT_LENGTH + counting.CONTEXT, run / "replay" / "eval"),
        partial(_make_env, run, step_s),
        partial(_make_env, run, step_s),
        partial(counting.make_stream, counting.BATCH, counting.LENGTH, counting.REPORT_LENGTH, counting.CONTEXT),
        partial(counting.make_logger, run),
        {"logdir": str(run), **shape, **both, **args},
    )
    return Snapshots(run).manifest()


def _make_agent(run: Path, update_s: float) -> SlowAgent:
    _await_ready(run, "logger", "replay")
    return SlowAgent(update_s)


def _make_env(run: Path, step_s: float, index: int) -> SlowEnv:
    _await_ready(run, "agent")
    return SlowEnv(index, step_s)


def _await_ready(run: Path, *roles: str) -> None:
    wait_until(lambda: {event["role"] for event in events_of(run, "ready")} >= {*roles}, READY_S, f"{roles} are ready")
