"""Messages from the holder of a key, mutated, against a live actor with a replay and a logger behind it.

`DREAMFLEET_MUTATIONS` sets the number of messages that the slow test sends to a whole fleet.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dreamfleet.agent.random_agent import RandomAgent
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import using_context
from dreamfleet.envs.builtin.dummy import Dummy
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.metrics.sinks.jsonl import JsonlSink
from dreamfleet.replay.store import ReplayOptions, ReplayStore
from dreamfleet.roles.actor import ActorRole
from dreamfleet.roles.env_worker.role import make_worker
from dreamfleet.roles.lockstep.calls import DirectCalls
from dreamfleet.roles.logger import LoggerRole
from dreamfleet.roles.replay import ReplayRole
from dreamfleet.transport.batching import BatchServer
from dreamfleet.transport.security import load_client
from support.cli_fleet import CliFleet
from support.fakes import make_context
from support.mutations import Mutator

MESSAGES = 2000  # in a few seconds
FLEET_MESSAGES = int(os.environ.get("DREAMFLEET_MUTATIONS", "50000"))
PEER_BYTES = 64 << 20
LENGTH = 4
WAIT_S = 20.0


class Direct(DirectCalls):
    full = False

    def poll(self) -> None: ...


class Actor:
    """An actor with a real replay and logger, and an honest env worker beside whoever else sends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"ipc://{folder}/actor"
        limits = {"actor_batch": 8, "batch_length": LENGTH, "train_ratio": 1e-9}  # inserts never wait
        args = FleetArgs(logdir=folder, actor_addr=self.address, log_every=0.05, envs=2, **limits)
        context, self.report = make_context("actor")
        store, evaluation = (ReplayStore(ReplayOptions(LENGTH, 2000)) for _ in range(2))
        with using_context(context):
            self.replay = ReplayRole(store, evaluation, lambda replay, mode: iter([]), args)
            self.logger = LoggerRole(MetricsLogger([JsonlSink(folder / "metrics.jsonl")]), args)
        to_replay: Any = Direct(self.replay.add_batch, self.replay.add_batch_eval, self.replay.sizes)
        to_logger: Any = Direct(self.logger.tran, self.logger.tran_eval, self.logger.add, self.logger.video)
        self.failures: list[BaseException] = []
        spaces = Dummy()
        agent = RandomAgent(spaces.act_space, row_space=spaces.obs_space)
        self.role = ActorRole(agent, args, to_replay, to_logger, context, self.failures.append)
        frames = self.role.admission.rows.frame_bytes()
        self.server = BatchServer(self.address, name="actor", on_error=self.failures.append, max_frame_bytes=frames)
        self.role.serve(self.server)
        self.worker_context, _ = make_context("env-0")
        self.worker = make_worker(lambda index: Dummy(index), range(2), "train", args)
        self.thread = threading.Thread(target=self._step)

    def _step(self) -> None:
        try:
            self.worker.run(self.worker_context)
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> Actor:
        self.server.start()
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.worker_context.stop.set()
        self.thread.join(WAIT_S)
        self.server.close()
        self.logger._file.close()
        self.logger.logger.close()  # type: ignore[attr-defined]


@pytest.fixture
def actor(tmp_path: Path) -> Iterator[Actor]:
    with Actor(tmp_path) as actor:
        yield actor


def test_mutated_messages_of_a_worker_neither_end_nor_reset_a_run(actor: Actor) -> None:
    with Mutator(actor.address, seed=0) as mutator:
        mutator.run(100)
        joins, before = actor.worker.joins, actor.worker.steps
        mutator.run(MESSAGES)
        steps = actor.worker.steps - before
        mutator.refuse()
    actor.logger.write()
    print(
        f"{sum(mutator.sent.values())} messages: {dict(mutator.sent)}; answers: {dict(mutator.answers)}; {steps} steps"
    )
    assert actor.failures == []
    assert actor.report.finishes == []
    assert (joins, actor.worker.joins) == (1, 1)
    assert steps > 100
    assert mutator.answers["known"] > MESSAGES / 20, "too few were good enough to be passed on"
    assert {"SpaceMismatch", "ProtocolError", "Refused", "UnknownMethod"} <= mutator.answers.keys()
    assert actor.role.status()["refused"]["workers_aside"] > 0


def test_what_is_passed_on_of_mutated_messages_is_sound(actor: Actor) -> None:
    with Mutator(actor.address, seed=1) as mutator:
        mutator.run(MESSAGES // 3)
    actor.logger.write()
    batch = actor.replay.train.sample(200, "train")
    assert all(np.isfinite(batch[key]).all() for key in ("reward", "vector"))
    assert (batch["count"] >= 0).all() and (batch["count"] <= 100).all()
    rows = [json.loads(line) for line in (actor.folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows]
    assert steps == sorted(steps) and steps[-1] < 10**9
    assert actor.logger.refused == 0, "the actor lets nothing pass that the logger cannot use"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_mutated_messages_against_a_whole_fleet(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "run.envs=2", "run.actor_batch=8", "run.train_ratio=1", "run.save_every=5") as fleet:
        fleet.wait_training()
        address = json.loads((tmp_path / "fleet.json").read_text())["addresses"]["actor"][1]
        agent = psutil.Process(fleet.status()["roles"]["agent"]["pid"])
        with Mutator(address, 7, load_client(tmp_path / "keys", "actor", "worker")) as mutator:
            mutator.run(500)
            memory, step, updates = agent.memory_info().rss, fleet.step(), fleet.updates()
            workers = [name for name in fleet.status()["roles"] if name.startswith("env-")]
            fleet.wait(lambda: all(fleet.role(name) for name in workers), "a status of every worker")
            joins = [fleet.role(name)["joins"] for name in workers]
            mutator.run(FLEET_MESSAGES)
        fleet.wait(lambda: fleet.step() > step + 100 and fleet.updates() > updates, "steps and updates as before")
        grown = agent.memory_info().rss - memory
        print(f"{sum(mutator.sent.values())} messages, answers {dict(mutator.answers)}, {grown / 2**20:.1f} MiB more")
        roles = fleet.status()["roles"]
        assert joins == [fleet.role(name)["joins"] for name in workers]
        assert not any(role["restarts"] for role in roles.values())
        assert grown < PEER_BYTES
        assert fleet.stop()[0] == 130
