"""Snapshots: for how long training stands still while one is taken, and how long it takes until it is complete.

    python benchmarks/snapshots.py [--json] [--size size12m] [--steps 20000] [--folder DIR]

The agent has the arrays of Dreamer of that size, on the device; replay holds steps with 64x64x3 images and the latents
of size12m. Roles are real and called without sockets. An update does nothing, so that what a step of the learner takes
is the snapshot's doing.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from dreamfleet.agent.parameters import leaf_names
from dreamfleet.agent.train_step import Recipe, init_state
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.agent import hyperparameters
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import parse_overrides
from dreamfleet.core.context import RoleContext
from dreamfleet.core.spaces import Space
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.model.dreamer_model import ComputeSettings
from dreamfleet.replay.store import ReplayOptions, ReplayStore
from dreamfleet.replay.stream import ReplayStream
from dreamfleet.roles.learner import LearnerRole
from dreamfleet.roles.learner_clients import LearnerClients
from dreamfleet.roles.logger import LoggerRole
from dreamfleet.roles.replay import ReplayRole

STREAMS, LENGTH, SNAPSHOTS = 16, 64, 3
OBS = {"image": Space(np.uint8, (64, 64, 3)), **{key: Space(bool) for key in ("is_first", "is_last", "is_terminal")}}
ACT = {"action": Space(np.int32, (), 0, 17)}


class LocalClient:
    """Calls a role's handler in the calling thread."""

    def __init__(self, role: Any) -> None:
        self._role = role
        self.timeout_s = 60.0

    def call(self, method: str, arrays: Any = None) -> Any:
        answer = getattr(self._role, method)(arrays or {})
        return type("Future", (), {"result": lambda self, timeout_s=None: answer or {}})()

    def stats(self) -> dict[str, float]:
        return {}


class Frozen:
    """Dreamer's arrays without its arithmetic."""

    def __init__(self, size: str) -> None:
        options = hyperparameters(parse_overrides([f"agent.size={size}"]).agent)
        recipe = Recipe(
            options, ComputeSettings(jnp.bfloat16, 1, 1, False), {**OBS, "reward": Space(np.float32)}, ACT, 1, 1
        )
        spec = jax.eval_shape(lambda key: init_state(key, recipe), jax.random.key(0))
        self.names = leaf_names(spec)
        self.leaves = [jnp.ones(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(spec)]
        self.nbytes = sum(leaf.nbytes for leaf in self.leaves)

    def init_train(self, n: int) -> None: ...

    def train(self, carry: Any, batch: Any) -> Any:
        return carry, {}, {}

    def stream(self, source: Iterator[Any]) -> Iterator[Any]:
        return iter(dict, None)

    def save(self) -> dict[str, np.ndarray]:
        return dict(zip(self.names, jax.device_get(self.leaves), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--size", default="size12m", help="of the agent")
    parser.add_argument("--steps", type=int, default=20_000, help="that replay holds")
    parser.add_argument("--folder", type=Path, help="where snapshots go; else a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measured = measure(Path(folder), options.size, options.steps)
    if options.json:
        print(json.dumps(measured))
        return
    for name, value in measured.items():
        print(f"{name:24}{value}")


def measure(run: Path, size: str, steps: int) -> dict[str, Any]:
    args = FleetArgs(logdir=run, save_every=0, log_every=0, report_every=0, train_ratio=0)
    context = {"length": LENGTH + 1, "context": 1, "capacity": 4 * steps}
    train, evaluation = (ReplayStore(ReplayOptions(**context, folder=run / "replay" / mode)) for mode in ("t", "e"))
    replay = ReplayRole(train, evaluation, lambda store, mode: ReplayStream(store, mode, 16, LENGTH), args)
    logger = LoggerRole(MetricsLogger([]), args)
    agent = Frozen(size)
    clients = {name: LocalClient(role) for name, role in (("replay", replay), ("logger", logger))}
    learner_clients = LearnerClients(
        clients["replay"],
        clients["replay"],
        clients["replay"],
        clients["logger"],
        (clients["replay"], clients["logger"]),
    )  # type: ignore[arg-type]
    learner = LearnerRole(agent, args, learner_clients, RoleContext("learner"))  # type: ignore[arg-type]
    insert(replay, steps, 0)
    held, cpu, whole = [], [], []
    for number in range(SNAPSHOTS):
        insert(replay, steps // 10, 1 + number)
        learner.step()
        start, busy = time.perf_counter(), time.thread_time()
        learner.save()
        held.append(time.perf_counter() - start)
        cpu.append(time.thread_time() - busy)
        learner.snapshots.await_written(600)
        whole.append(time.perf_counter() - start)
    folder = Snapshots(run).latest()
    assert folder is not None
    start = time.perf_counter()
    Snapshots(run).newest()
    return {
        "machine": f"{platform.processor() or platform.machine()}, {jax.devices()[0].device_kind}",
        "agent": f"{size}, {agent.nbytes / 1e6:.0f} MB in {len(agent.names)} arrays",
        "parts": sorted({name.split("/")[0] for name in agent.names}),
        "replay_steps": steps,
        "held_up_s": [round(seconds, 3) for seconds in held],
        "held_up_cpu_s": [round(seconds, 3) for seconds in cpu],
        "complete_after_s": [round(seconds, 3) for seconds in whole],
        "newest_ms": round(1e3 * (time.perf_counter() - start), 2),
        "snapshot_mb": round(sum(path.stat().st_size for path in folder.iterdir()) / 1e6, 1),
    }


def insert(replay: ReplayRole, steps: int, stream: int) -> None:
    rng = np.random.default_rng(stream)
    rows: Mapping[str, np.ndarray] = {
        "stream": 100 * stream + np.arange(STREAMS),
        "image": rng.integers(0, 255, (STREAMS, 64, 64, 3), np.uint8),
        "dyn/deter": np.zeros((STREAMS, 2048), ml_dtypes.bfloat16),
        "dyn/stoch": np.zeros((STREAMS, 32), np.uint8),
        "reward": np.zeros(STREAMS, np.float32),
        **{key: np.zeros(STREAMS, bool) for key in ("is_first", "is_last", "is_terminal")},
    }
    for _ in range(steps // STREAMS):
        replay.add_batch(dict(rows))


if __name__ == "__main__":
    main()
