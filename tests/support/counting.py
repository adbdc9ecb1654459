"""An environment that counts its steps, and an agent that checks at every station that none is lost or mixed up.

The action is a function of the observation, so the environment can tell whether its action was meant for it. The
recurrent carry holds what the next observation must be, so the agent can tell whether the carry is its environment's
own. Verdicts travel with the steps into replay, and the learner checks them together with the order of the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet import parallel
from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.spaces import Space
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.metrics.sinks.jsonl import JsonlSink
from dreamfleet.replay.store import ReplayOptions, ReplayStore
from dreamfleet.replay.stream import ReplayStream

STEPS, ENVS = 3000, 4
BATCH, LENGTH, REPORT_LENGTH, CONTEXT = 4, 8, 4, 1
# Windows that may be on their way when a run ends: three requests in flight and what the limiter tolerates.
UNTRAINED_STEPS = (3 * BATCH + 4 * BATCH + BATCH) * (LENGTH + CONTEXT)


def expected_action(env: Any, count: Any) -> Any:
    return (env * 1009 + count * 31) % 977


class CountingEnv:
    """`count` runs on over episodes; `env` and `evaluation` say whose steps these are."""

    def __init__(self, index: int, evaluation: bool = False) -> None:
        self._index = index
        self._evaluation = evaluation
        self._length = 5 + index % 1000
        self._count = -1
        self._episode = -1
        self._left = 0
        self._done = True
        self.closed = False
        self.obs_space = {
            "env": Space(np.int32),
            "episode": Space(np.int32),
            "count": Space(np.int32),
            "evaluation": Space(bool),
            "log/count": Space(np.float32),
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        self.act_space = {"action": Space(np.int32, (), 0, 977), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        begins = bool(action["reset"]) or self._done
        if not begins and action["action"] != expected_action(self._index, self._count):
            raise AssertionError(f"env {self._index} got another environment's action after count {self._count}")
        self._count += 1
        self._episode += begins
        self._left = self._length if begins else self._left - 1
        self._done = self._left == 0
        return {
            "env": np.int32(self._index),
            "episode": np.int32(self._episode),
            "count": np.int32(self._count),
            "evaluation": np.bool_(self._evaluation),
            "log/count": np.float32(self._count),
            "reward": np.float32(not begins),
            "is_first": np.bool_(begins),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(False),
        }

    def close(self) -> None:
        self.closed = True


class CountingAgent:
    """With `apart`, evaluation has policy calls of its own."""

    def __init__(self, apart: bool = True) -> None:
        self._apart = apart
        self._identity: dict[tuple[int, int], tuple[int, int]] = {}  # stepid to (env, count)
        self._stepid: dict[tuple[int, int], tuple[int, int]] = {}  # and back
        self._updates = 0
        self._eval_steps = 0

    def init_policy(self, n: int) -> Any:
        return {"env": np.full(n, -1, np.int32), "next": (np.zeros(n, np.int32),)}

    def policy(self, carry: Any, obs: Arrays, mode: str) -> tuple[Any, Arrays, Arrays]:
        assert not any(key.startswith("log/") for key in obs)
        assert (obs["evaluation"] == (mode == "eval")).all() if self._apart else mode == "train"
        fresh = carry["env"] < 0
        continued = (carry["env"] == obs["env"]) & (carry["next"][0] == obs["count"])
        own = np.where(fresh, obs["count"] == 0, continued)
        following = {"env": obs["env"].copy(), "next": (obs["count"] + 1,)}
        actions = {"action": expected_action(obs["env"], obs["count"]).astype(np.int32)}
        return following, actions, {"own": own, "dyn/latent": 2.0 * obs["count"].astype(np.float32)}

    def init_train(self, n: int) -> Any:
        return {}

    def train(self, carry: Any, batch: Arrays) -> tuple[Any, dict[str, Any], Mapping[str, Any]]:
        self._check(batch)
        assert not batch["evaluation"].any()
        self._updates += 1
        stored = batch["dyn/latent"]  # of the context step alone: twice its count, plus one once it was written back
        context = 2 * batch["count"][:, : stored.shape[1]]
        assert ((stored == context) | (stored == context + 1)).all()
        written = 2.0 * batch["count"].astype(np.float32) + 1
        outs = {"replay": {"stepid": batch["stepid"], "dyn/latent": written}}
        return carry, outs, {"fresh_latents": (stored == context).mean(), "steps_seen": len(self._identity)}

    def init_report(self, n: int) -> Any:
        return {}

    def report(self, carry: Any, batch: Arrays) -> tuple[Any, Mapping[str, Any]]:
        self._check_order(batch)
        evaluation = batch["evaluation"]
        assert evaluation.all() or not evaluation.any()
        self._eval_steps += int(evaluation.sum())
        return carry, {"evaluation": evaluation.mean()}

    def stream(self, source: Iterator[Arrays]) -> Iterator[Arrays]:
        return source

    def save(self) -> Arrays:
        pairs = np.array(sorted(self._stepid), np.int64).reshape(-1, 2)
        return {"seen": pairs, "updates": np.array(self._updates), "eval_steps": np.array(self._eval_steps)}

    def load(self, data: Mapping[str, np.ndarray], regex: str | None = None) -> None:
        self._updates = int(data["updates"])

    def _check(self, batch: Arrays) -> None:
        self._check_order(batch)
        for stepid, env, count in zip(
            batch["stepid"].reshape(-1, 2).tolist(),
            batch["env"].ravel().tolist(),
            batch["count"].ravel().tolist(),
            strict=True,
        ):
            assert self._identity.setdefault(tuple(stepid), (env, count)) == (env, count)
            assert self._stepid.setdefault((env, count), tuple(stepid)) == tuple(stepid), "a step is in replay twice"

    def _check_order(self, batch: Arrays) -> None:
        assert batch["own"].all(), "a carry met another environment's observation"
        assert (batch["env"] == batch["env"][:, :1]).all()
        assert (np.diff(batch["count"]) == 1).all()
        assert (np.diff(batch["stepid"], axis=1) == (0, 1)).all()
        np.testing.assert_array_equal(np.diff(batch["episode"]) == 1, batch["is_first"][:, 1:])
        np.testing.assert_array_equal(batch["is_last"][:, :-1], batch["is_first"][:, 1:])
        np.testing.assert_array_equal(batch["action"], expected_action(batch["env"], batch["count"]))
        assert batch["is_first"][:, 0].all()


def make_agent(apart: bool = True) -> CountingAgent:
    return CountingAgent(apart)


def make_replay(length: int, folder: Path, capacity: int = 100_000) -> ReplayStore:
    return ReplayStore(ReplayOptions(length, capacity, context=1, chunksize=32, online=True, folder=folder))


def make_env_train(index: int) -> CountingEnv:
    return CountingEnv(index)


def make_env_eval(index: int) -> CountingEnv:
    return CountingEnv(1000 + index, evaluation=True)


def make_stream(batch_size: int, length: int, report_length: int, context: int, replay: Any, mode: str) -> ReplayStream:
    return ReplayStream(replay, mode, batch_size, length if mode == "train" else report_length, context=context)


def make_logger(folder: Path) -> MetricsLogger:
    return MetricsLogger([JsonlSink(folder / "metrics.jsonl")])


def run_fleet(folder: Path, **changes: Any) -> Arrays:
    """Runs a fleet of counting environments to its end and returns what its agent has saved."""
    args = {
        "logdir": str(folder),
        "steps": STEPS,
        "envs": ENVS,
        "eval_envs": 2,
        "envs_per_worker": 2,
        "batch_size": BATCH,
        "batch_length": LENGTH,
        "report_length": REPORT_LENGTH,
        "replay_context": CONTEXT,
        "train_ratio": 3.0,
        "log_every": -1,
        "report_every": 0.5,
        **changes,
    }
    parallel.combined(
        partial(make_agent, changes.get("eval_apart", True)),
        partial(make_replay, LENGTH + CONTEXT, folder / "replay" / "train"),
        partial(make_replay, REPORT_LENGTH + CONTEXT, folder / "replay" / "eval"),
        make_env_train,
        make_env_eval,
        partial(make_stream, BATCH, LENGTH, REPORT_LENGTH, CONTEXT),
        partial(make_logger, folder),
        args,
    )
    latest = Snapshots(folder).latest()
    assert latest is not None
    return load_arrays(latest / "agent.safetensors")


def steps_seen(agent: Arrays) -> dict[int, np.ndarray]:
    """Counts that were trained on, by environment."""
    envs, counts = agent["seen"].T
    return {int(env): np.sort(counts[envs == env]) for env in np.unique(envs)}


def expect_complete(agent: Arrays) -> None:
    """Every training environment had its share of the steps, and all but the last of them were trained on."""
    seen = steps_seen(agent)
    assert sorted(seen) == list(range(ENVS))
    for env, counts in seen.items():
        assert counts.max() > STEPS / ENVS - 2 * UNTRAINED_STEPS, f"env {env} was trained on up to {counts.max()} only"
        missing = np.setdiff1d(np.arange(counts.max()), counts)
        assert (missing > counts.max() - UNTRAINED_STEPS).all(), f"env {env} lost steps {missing}"
