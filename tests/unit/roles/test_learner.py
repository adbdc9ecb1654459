"""The learner's loop, one step at a time, with fake clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dreamfleet.config.args import PREFETCH
from dreamfleet.core.errors import (
    Disconnected,
    ReplayError,
    Stopped,
    TransportError,
)
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.waits import Wait, Waits
from dreamfleet.roles.learner_clients import RemoteStream
from support.fakes import SummingAgent
from support.learners import Learner, stop_after, values


def test_every_batch_is_trained_on_once_and_in_order(tmp_path) -> None:
    learner = Learner(tmp_path)
    for _ in range(5):
        learner.role.step()
    assert values(learner.agent.trained) == [1, 2, 3, 4, 5]
    assert learner.role.updates == 5


def test_the_next_batches_are_asked_for_ahead(tmp_path) -> None:
    learner = Learner(tmp_path)
    for steps in range(1, 4):
        learner.role.step()
        ahead = learner.methods().count("sample_batch_train") - steps
        assert ahead == PREFETCH - 1
    assert learner.served["train"] == 3  # results are waited for one at a time


class Ahead(SummingAgent):
    """As Dreamer: a batch is on the device while the one before it is trained on, and latents come an update late."""

    def __init__(self, calls: list[tuple[str, Arrays]]) -> None:
        super().__init__()
        self._calls = calls
        self._late: dict[str, Any] = {}
        self.requested: list[int] = []  # batches, by the time of each update

    def stream(self, source: Iterator[Arrays]) -> Iterator[Arrays]:
        ahead = next(source)
        for batch in source:
            yield ahead
            ahead = batch

    def train(self, carry: int, batch: Arrays) -> Any:
        self.requested.append([method for method, _ in self._calls].count("sample_batch_train"))
        carry, outs, metrics = super().train(carry, batch)
        late, self._late = self._late, outs
        return carry, late, metrics


def test_how_old_a_batch_and_its_latents_can_be(tmp_path) -> None:
    """The numbers of docs/architecture.md."""
    learner = Learner(tmp_path)
    agent = Ahead(learner.calls)
    learner.remake(agent=agent)
    for _ in range(8):
        learner.role.step()
    assert values(agent.trained) == [*range(1, 9)]
    assert agent.requested == [update + PREFETCH for update in range(1, 9)]  # before update 1: batches 1 to 4
    written = [sum(method == "update" for method, _ in learner.calls[:at]) for at in requests(learner)]
    assert written[5:] == [update - 5 for update in range(6, len(written) + 1)]  # updates whose latents were sent


def requests(learner: Learner) -> list[int]:
    return [at for at, (method, _) in enumerate(learner.calls) if method == "sample_batch_train"]


def test_a_wait_for_replay_goes_on_when_replay_is_lost_in_it(monkeypatch) -> None:
    waits, now = Waits(), [0.0]
    monkeypatch.setattr("dreamfleet.core.waits.time.monotonic", lambda: now[0])
    shown: list[dict[str, float]] = []

    class Lost:
        """The first two answers never come: replay is lost after five seconds each."""

        calls = 0

        def call(self, method: str, data: Arrays) -> Lost:
            self.calls += 1
            return self

        def result(self) -> Arrays:
            now[0] += 5
            shown.append(waits.current())
            if len(shown) < 3:
                raise Disconnected("replay is gone")
            return {}

    client: Any = Lost()
    next(RemoteStream(client, "sample_train", waits))
    assert shown == [{Wait.REPLAY_TO_SAMPLE: seconds} for seconds in (5, 10, 15)]
    assert client.calls == 3


def test_what_training_gives_out_for_replay_is_sent_back(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    (sent,) = learner.clients.updater.sent("update")
    assert sent.keys() == {"stepid", "latent"}
    assert sent["latent"].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_nothing_is_sent_back_when_training_gives_out_nothing(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.agent.writes_back = False
    learner.role.step()
    assert "update" not in learner.methods()


def test_without_eval_data_only_the_train_replay_is_reported_on(tmp_path) -> None:
    learner = Learner(tmp_path, report_every=-1, report_batches=2)
    learner.role.step()
    assert learner.served == {"train": 1, "report": 2, "eval": 0}
    assert [(m["prefix"], m["metrics"]) for m in learner.metrics()] == [
        ("report", {"error": 0}),
        ("report", {"error": 1}),
    ]


def test_with_eval_data_both_are_reported_on_under_their_own_names(tmp_path) -> None:
    learner = Learner(tmp_path, eval_items=1, report_every=-1)
    learner.role.step()
    assert learner.served == {"train": 1, "report": 1, "eval": 1}
    assert [m["prefix"] for m in learner.metrics()] == ["report", "eval"]
    assert learner.role.updates == 1


def test_logs_the_newest_scalars_of_training_and_the_rates(tmp_path) -> None:
    learner = Learner(tmp_path, log_every=-1)
    learner.role.restore()
    learner.role.step()
    general, training = learner.metrics()
    assert general["metrics"].keys() >= {
        "fps/train",
        "fps/updates",
        "timer/learner/train/avg_ms",
        "wait/learner/replay_to_start_s",
        "wait/learner/replay_to_sample_s",
        "wait/learner/replay_to_accept_latents_s",
    }
    assert training == {"prefix": "train", "metrics": {"loss": 0}}  # the image is no scalar
    assert not any(key.startswith("device/") for key in general["metrics"])


def test_seconds_of_the_device_are_in_the_metrics_and_the_status(tmp_path) -> None:
    class Measured(SummingAgent):
        def device_seconds(self) -> dict[str, float]:
            return {"busy": 3.0, "idle": 1.0}

    learner = Learner(tmp_path, log_every=-1)
    learner.remake(agent=Measured())
    learner.role.step()
    metrics = learner.metrics()[0]["metrics"]
    assert (metrics["device/busy_s"], metrics["device/idle_s"]) == (3.0, 1.0)
    assert learner.role.status()["device_s"] == {"busy": 3.0, "idle": 1.0}


def test_run_trains_until_it_is_stopped_then_logs_and_saves(tmp_path) -> None:
    learner = Learner(tmp_path)
    stop_after(learner, 4)
    learner.role.run()
    assert learner.role.updates == 4
    assert [m["prefix"] for m in learner.metrics()] == [None, "train"]
    assert learner.report.event_names() == ["snapshot"]


def test_run_sees_its_stop_while_batches_keep_coming(tmp_path) -> None:
    learner = Learner(tmp_path)
    train = learner.agent.train

    def train_and_stop(carry: int, batch: Arrays) -> Any:
        assert learner.role.updates < 3, "trained on after the stop"
        if learner.role.updates == 2:
            learner.context.stop.set()
        return train(carry, batch)

    learner.agent.train = train_and_stop  # type: ignore[method-assign]
    learner.role.run()
    assert learner.report.events == [("snapshot", {"step": 1234, "updates": 3})]


def test_a_replay_that_ends_by_itself_is_a_failure(tmp_path) -> None:
    learner = Learner(tmp_path)

    def ended(_: Arrays) -> Arrays:
        raise Stopped("replay sample ended: the limiter is closed")

    learner.clients.sampler.answers["sample_batch_train"] = ended
    with pytest.raises(TransportError, match="has ended: replay sample ended"):
        learner.role.run()
    assert learner.report.events == []


def test_an_error_in_training_ends_the_run(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.agent.train = lambda carry, batch: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        learner.role.run()
    assert learner.report.events == []


def test_clients_are_closed_together(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.clients.close()
    clients = (learner.clients.sampler, learner.clients.updater, learner.clients.replay, learner.clients.logger)
    assert all(client.closed for client in clients)


def test_the_status_shows_updates_and_waits(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    status = learner.role.status()
    assert (status["updates"], status["waiting"]) == (1, {})


def test_a_report_from_a_replay_that_came_back_empty_is_left_out(tmp_path) -> None:
    learner = Learner(tmp_path, report_every=-1)

    def fail(_: Arrays) -> Arrays:
        raise ReplayError("nothing to sample")

    learner.clients.sampler.answers["sample_batch_report"] = fail
    learner.role.step()
    assert learner.role.updates == 1


def test_reports_go_on_after_one_that_failed_though_its_error_closed_the_agents_stream(tmp_path) -> None:
    class Generates(SummingAgent):
        def stream(self, source: Iterator[Arrays]) -> Iterator[Arrays]:
            yield from source

    learner = Learner(tmp_path, report_every=-1)
    learner.remake(agent=Generates())
    serve = learner.clients.sampler.answers["sample_batch_report"]

    def fail(_: Arrays) -> Arrays:
        raise ReplayError("replay holds no window of 4 steps yet")

    learner.clients.sampler.answers["sample_batch_report"] = fail
    learner.role.step()
    learner.clients.sampler.answers["sample_batch_report"] = serve
    learner.role.step()
    learner.role.step()
    assert learner.role.updates == 3
    assert [m["prefix"] for m in learner.metrics()] == ["report", "report"]


def test_a_window_is_reported_on_from_the_state_that_its_chunk_before_ended_with(tmp_path) -> None:
    """Chunks of a window come one after the other, over reports too: the carry counts the batches of its kind."""
    learner = Learner(tmp_path, eval_items=1, report_every=-1)
    for _ in range(3):
        learner.role.step()
    assert [(m["prefix"], m["metrics"]["error"]) for m in learner.metrics()] == [
        (kind, number) for number in range(3) for kind in ("report", "eval")
    ]


class Chunks:
    """Replay's answers for one kind: windows of three chunks, of which the answers numbered in `lost` never arrive."""

    def __init__(self, lost: set[int]) -> None:
        self._lost = lost
        self._served = 0

    def __call__(self, _: Arrays) -> Arrays:
        number = self._served
        self._served += 1
        if number in self._lost:
            raise Disconnected("the connection was lost after replay had cut the chunk")
        shape = {"value": np.full((2, 3), number), "stepid": np.zeros((2, 3, 2), np.int64)}
        return {**shape, "consec": np.full(2, number % 3, np.int32)}


@pytest.mark.parametrize(
    ("lost", "used"),
    [
        (set(), [0, 1, 2, 3, 4, 5, 6, 7]),
        ({1}, [0, 3, 4, 5, 6, 7, 8, 9]),  # no chunk of its window follows the first one
        ({0}, [3, 4, 5, 6, 7, 8, 9, 10]),
        ({2}, [0, 1, 3, 4, 5, 6, 7, 8]),
        ({1, 2, 3}, [0, 6, 7, 8, 9, 10, 11, 12]),  # chunk 4 is a second one too, of another window
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["report", "train"])
def test_a_chunk_is_used_only_with_the_carry_of_the_chunk_before_it(
    tmp_path, kind: str, lost: set[int], used: list[int]
) -> None:
    """The connection is lost in the middle of a window: replay goes on with the chunk after the one that was lost."""
    learner = Learner(tmp_path, report_every=-1, prefetch=1)
    learner.clients.sampler.answers[f"sample_batch_{kind}"] = Chunks(lost)  # type: ignore[attr-defined]
    for _ in range(8):
        learner.role.step()
    assert values(learner.agent.reported if kind == "report" else learner.agent.trained) == used
