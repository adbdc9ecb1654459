"""An actor behind a real batch server and an env worker, both in threads of the test."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.roles.actor import ActorRole
from dreamfleet.roles.connect import RUN_STEP
from dreamfleet.roles.env_worker.role import make_worker
from dreamfleet.transport.batching import BatchServer
from support.counting import CountingAgent, CountingEnv
from support.fakes import FakeClient, make_context

WAIT_S = 20.0


class WorkerFleet:
    """Steps `envs` environments, by default counting ones, over one ipc address until the block ends."""

    def __init__(
        self, folder: Path, envs: int, mode: str = "train", make: Callable[..., Any] | None = None, **args: Any
    ) -> None:
        self.args = FleetArgs(logdir=folder, actor_addr=f"ipc://{folder}/actor", log_every=0, **args)
        self.replay, self.logger = FakeClient(), FakeClient()
        self.envs: list[CountingEnv] = []
        self._evaluation = mode == "eval"
        self.worker = make_worker(make or self._make_env, range(envs), mode, self.args)
        self.context, self.report = make_context("env-0")
        self.failures: list[BaseException] = []
        self.actor = self.new_actor()
        self.server = self.new_server()
        self.thread = threading.Thread(target=self._run)

    def _make_env(self, index: int) -> CountingEnv:
        self.envs.append(CountingEnv(index, self._evaluation))
        return self.envs[-1]

    def new_actor(self) -> ActorRole:
        context, _ = make_context("actor")
        return ActorRole(CountingAgent(), self.args, self.replay, self.logger, context, self.failures.append)  # type: ignore[arg-type]

    def new_server(self) -> BatchServer:
        server = BatchServer(self.args.actor_addr, name="actor", on_error=self.failures.append)
        self.actor.serve(server)
        server.start()
        return server

    def _run(self) -> None:
        try:
            self.worker.run(self.context)
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> WorkerFleet:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.context.stop.set()
        self.thread.join(WAIT_S)
        self.server.close()
        assert not self.thread.is_alive()
        assert self.failures == []

    def await_steps(self, count: int) -> None:
        """Until that many batches of steps more have come to replay."""
        before = len(self.replay.calls)
        self.replay.await_calls(lambda client: len(client.calls) >= before + count)

    def streams(self, method: str = "add_batch") -> dict[int, list[dict[str, Any]]]:
        """The steps that came to replay, by stream and in order."""
        found: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for batch in self.replay.sent(method):
            for row, stream in enumerate(batch["stream"].tolist()):
                found[stream].append({key: value[row].item() for key, value in batch.items() if key != RUN_STEP})
        return found


def expect_complete(steps: list[dict[str, Any]]) -> None:
    """The steps of one stream are those of one environment, each once and in order, from an episode's first on."""
    start = steps[0]["count"]
    assert {step["env"] for step in steps} == {steps[0]["env"]}
    assert [step["count"] for step in steps] == list(range(start, start + len(steps)))
    assert steps[0]["is_first"]
    for step, following in itertools.pairwise(steps):
        assert step["is_last"] == following["is_first"]
