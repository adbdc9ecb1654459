"""Stand-ins for what a unit is connected to: clients that record, a reporter that remembers, an agent that adds up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dreamfleet.core.context import RoleContext
from dreamfleet.core.errors import DeadlineExceeded
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.codec import unpack_json

Answer = Callable[[Arrays], Arrays]


class FakeFuture:
    """Calls its answer when it is asked for the result, as a server would answer only later."""

    def __init__(self, client: FakeClient, method: str, arrays: Arrays) -> None:
        self._client = client
        self._method = method
        self._arrays = arrays

    def result(self, timeout_s: float | None = None) -> Arrays:
        self._client.waits.append((self._method, self._client.timeout_s if timeout_s is None else timeout_s))
        answer = self._client.answers.get(self._method)
        return answer(self._arrays) if answer else {}


class FakeClient:
    """Records calls in `calls` and waited-for results in `waits`. `answers` maps methods to handlers, others get {}.

    Several fakes may share one `calls` list, which then holds the order across them.
    """

    def __init__(self, calls: list[tuple[str, Arrays]] | None = None, **answers: Answer) -> None:
        self.calls = [] if calls is None else calls
        self.waits: list[tuple[str, float | None]] = []
        self.answers: dict[str, Answer] = dict(answers)
        self.timeout_s: float | None = None
        self.connected = True
        self.closed = False
        self.full = False
        self._called = threading.Condition()  # guards `calls` of a client that a server's thread uses

    def call(self, method: str, arrays: Mapping[str, np.ndarray] | None = None) -> FakeFuture:
        with self._called:
            self.calls.append((method, dict(arrays or {})))
            self._called.notify_all()
        return FakeFuture(self, method, dict(arrays or {}))

    def await_calls(self, done: Callable[[FakeClient], bool], timeout_s: float = 20.0) -> None:
        """Waits until `done`, asked after every call."""
        with self._called:
            assert self._called.wait_for(lambda: done(self), timeout_s), f"only {self.methods()}"

    def poll(self) -> None:
        pass

    def wait_connected(self, timeout_s: float) -> None:
        if not self.connected:
            raise DeadlineExceeded("no connection")

    def stats(self) -> dict[str, float]:
        return {"inflight": 0, "wait_s": 0.0}

    def close(self) -> None:
        self.closed = True

    def methods(self) -> list[str]:
        return [method for method, _ in self.calls]

    def sent(self, method: str) -> list[Arrays]:
        return [arrays for name, arrays in self.calls if name == method]

    def metrics(self) -> list[dict[str, Any]]:
        """The messages sent to the logger's `add`."""
        return [unpack_json(arrays["json"]) for arrays in self.sent("add")]


class FakeReporter:
    """Remembers a role's reports in order."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.statuses: list[Mapping[str, Any]] = []
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.finishes: list[str] = []

    def state(self, state: str) -> None:
        self.states.append(state)

    def status(self, status: Mapping[str, Any]) -> None:
        self.statuses.append(status)

    def event(self, event: str, detail: Mapping[str, Any]) -> None:
        self.events.append((event, detail))

    def finish(self, reason: str) -> None:
        self.finishes.append(reason)

    def event_names(self) -> list[str]:
        return [event for event, _ in self.events]


def make_context(name: str = "role") -> tuple[RoleContext, FakeReporter]:
    report = FakeReporter()
    return RoleContext(name, report=report), report


class SummingAgent:
    """Its carry sums the `value` of every step since the episode's first one; the action is that sum.

    A carry that gets into another environment's hands, or a step that is seen twice, changes the actions. The policy
    also gives out `latent`, to be stored beside the step. Training writes a new `latent` back at every step of a batch.
    """

    def __init__(self) -> None:
        self.modes: list[str] = []
        self.rows: list[int] = []
        self.trained: list[Arrays] = []
        self.reported: list[Arrays] = []
        self.loaded: dict[str, np.ndarray] = {}
        self.writes_back = True

    def init_policy(self, n: int) -> dict[str, np.ndarray]:
        return {"sum": np.zeros(n, np.float64)}

    def policy(self, carry: Any, obs: Arrays, mode: str) -> tuple[Any, Arrays, Arrays]:
        self.modes.append(mode)
        self.rows.append(len(obs["value"]))
        self.keys = set(obs)
        total = np.where(obs["is_first"], 0.0, carry["sum"]) + obs["value"]
        return {"sum": total}, {"action": total.copy()}, {"latent": (total * 10).astype(np.float32)}

    def init_train(self, n: int) -> int:
        return 0

    def train(self, carry: int, batch: Arrays) -> tuple[int, dict[str, Any], Mapping[str, Any]]:
        self.trained.append(batch)
        outs = {"replay": {"stepid": batch["stepid"], "latent": batch["value"]}} if self.writes_back else {}
        return carry + 1, outs, {"loss": float(carry), "image": np.zeros((2, 2))}

    def init_report(self, n: int) -> int:
        return 0

    def report(self, carry: int, batch: Arrays) -> tuple[int, Mapping[str, Any]]:
        self.reported.append(batch)
        return carry + 1, {"error": float(carry)}

    def stream(self, source: Iterator[Arrays]) -> Iterator[Arrays]:
        return source

    def save(self) -> Arrays:
        return {"weights": np.arange(3.0)}

    def load(self, data: Mapping[str, np.ndarray], regex: str | None = None) -> None:
        self.loaded = dict(data)
