"""A learner with fake clients, for tests of its loop, its snapshots and its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import (
    Stopped,
)
from dreamfleet.core.interfaces import Arrays
from dreamfleet.roles.learner import LearnerRole
from dreamfleet.roles.learner_clients import LearnerClients
from support.fakes import FakeClient, SummingAgent, make_context


class Learner:
    """A learner role whose clients share one list of calls. Batches count: the n-th train batch holds n."""

    def __init__(self, logdir: Path, eval_items: int = 0, **args: Any) -> None:
        self.calls: list[tuple[str, Arrays]] = []
        self.served = {"train": 0, "report": 0, "eval": 0}
        self.sizes = {"train": 10, "eval": eval_items, "inserts": 1234, "step": 1234}
        self.agent = SummingAgent()
        self.context, self.report = make_context("learner")
        samples = {f"sample_batch_{kind}": self._serve(kind) for kind in self.served}
        self.lacks = 0  # steps that replay does not have when the role begins
        self.clients = LearnerClients(
            sampler=FakeClient(self.calls, go_back=lambda point: {"step": point["step"] - self.lacks}, **samples),
            updater=FakeClient(self.calls),
            replay=FakeClient(
                self.calls,
                sizes=lambda _: {k: np.array(v) for k, v in self.sizes.items()},
                save=lambda _: self.captured(),
            ),
            logger=FakeClient(self.calls),
        )
        never = {"log_every": 0, "report_every": 0, "save_every": 0}
        self.args = FleetArgs(logdir=logdir, batch_size=2, batch_length=3, **{**never, **args})
        self.role = LearnerRole(self.agent, self.args, self.clients, self.context)

    def remake(self, **parts: Any) -> None:
        """With other parts than those of `__init__`."""
        own = {"agent": self.agent, "args": self.args, "clients": self.clients, "context": self.context}
        self.role = LearnerRole(**{**own, **parts})

    def _serve(self, kind: str) -> Any:
        def serve(_: Arrays) -> Arrays:
            self.served[kind] += 1
            return {"value": np.full((2, 3), self.served[kind]), "stepid": np.zeros((2, 3, 2), np.int64)}

        return serve

    def stored(self, inserts: int, lost: int = 0) -> None:
        """Replay has so many steps by now."""
        self.sizes.update(inserts=inserts, step=inserts + lost)

    def captured(self) -> Arrays:
        return {key: np.array(self.sizes[key]) for key in ("inserts", "step")}

    def methods(self) -> list[str]:
        return [method for method, _ in self.calls]

    def metrics(self) -> list[dict[str, Any]]:
        return FakeClient(self.calls).metrics()


def values(batches: list[Arrays]) -> list[int]:
    return [int(batch["value"][0, 0]) for batch in batches]


def stop_after(learner: Learner, steps: int) -> None:
    serve = learner.clients.sampler.answers["sample_batch_train"]

    def serve_some(arrays: Arrays) -> Arrays:
        if learner.served["train"] == steps:
            learner.context.stop.set()
            raise Stopped("asked to stop")
        return serve(arrays)

    learner.clients.sampler.answers["sample_batch_train"] = serve_some
