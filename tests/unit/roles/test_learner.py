"""The learner's loop, one step at a time, with fake clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dreamfleet import __version__
from dreamfleet.agent.parameters import optimizer_to_reset
from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.requests import SnapshotRequests
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import PREFETCH, FleetArgs
from dreamfleet.core.clock import LocalClock
from dreamfleet.core.errors import (
    BadInput,
    DeadlineExceeded,
    Disconnected,
    NonFinite,
    ReplayError,
    Stopped,
    TransportError,
)
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.waits import Waits
from dreamfleet.roles.learner import LearnerRole
from dreamfleet.roles.learner_clients import LearnerClients, RemoteStream
from fakes import FakeClient, SummingAgent, make_context
from fleet_probe import wait_until


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
    assert shown == [{"replay to sample": seconds} for seconds in (5, 10, 15)]
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


def test_a_save_holds_every_part_before_it_counts(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    pending = tmp_path / "snapshots" / "000000001234.tmp"
    tokens: list[bytes] = []

    def part(arrays: Arrays) -> Arrays:
        assert int(arrays["snapshot"]) == 1234
        tokens.append(arrays["token"].tobytes())
        assert pending.is_dir()
        assert not (tmp_path / "snapshots" / "latest").exists()
        return {"inserts": np.array(1240), "step": np.array(1240)}  # six more steps came in the meantime

    def committed(arrays: Arrays) -> Arrays:
        numbers = {key: int(value) for key, value in arrays.items() if key != "token"}
        assert numbers == {"snapshot": 1234, "step": 1240, "updates": 1}
        assert arrays["token"].tobytes() == tokens.pop()
        assert (tmp_path / "snapshots" / "latest").exists()
        return {}

    learner.clients.replay.answers["committed"] = learner.clients.logger.answers["committed"] = committed
    learner.clients.replay.answers["save"] = learner.clients.logger.answers["save"] = part
    learner.calls.clear()
    learner.role.save()
    assert learner.methods() == ["sizes", "save", "save", "committed", "committed"]  # replay first, then the logger
    assert [method for method, _ in learner.clients.logger.waits] == ["save", "committed"]
    final = tmp_path / "snapshots" / "000000001234"
    assert (tmp_path / "snapshots" / "latest").read_text() == final.name
    assert not pending.exists()
    manifest = json.loads((final / "manifest.json").read_text())
    assert (manifest["step"], manifest["updates"], manifest["format"]) == (1240, 1, 3)
    assert (manifest["version"], manifest["config"], manifest["score"]) == (__version__, None, None)
    assert load_arrays(final / "agent.safetensors")["weights"].tolist() == [0, 1, 2]
    assert learner.report.events == [("snapshot", {"step": 1240, "updates": 1})]


def test_a_save_without_a_step_or_update_since_the_last_one_is_left_out(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    learner.role.save()
    learner.role.save()
    assert learner.report.events == [("snapshot", {"step": 1234, "updates": 1})]
    learner.role.step()
    learner.role.save()
    assert learner.report.events[1:] == [("snapshot", {"step": 1234, "updates": 2})]
    learner.stored(2000)
    learner.role.save()
    assert learner.report.events[2:] == [("snapshot", {"step": 2000, "updates": 2})]


def test_a_part_that_fails_leaves_the_previous_snapshot_in_place(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    learner.role.save()

    def fail(_: Arrays) -> Arrays:
        raise Disconnected("replay is gone")

    learner.clients.replay.answers["save"] = fail
    learner.stored(2000)
    learner.role.step()
    with pytest.raises(Disconnected):
        learner.role.save()
    assert (tmp_path / "snapshots" / "latest").read_text() == "000000001234"


def test_the_last_save_has_a_deadline_of_its_own(tmp_path) -> None:
    learner = Learner(tmp_path, save_timeout_s=33.0)
    learner.clients.replay.timeout_s = learner.clients.logger.timeout_s = 500.0
    learner.role.step()
    learner.role.save()
    assert {seconds for _, seconds in learner.clients.replay.waits} == {500}
    learner.role.step()
    learner.clients.replay.waits.clear()
    learner.context.stop.set()
    learner.role.run()
    assert learner.clients.replay.waits == [("sizes", 33), ("save", 33), ("committed", 33)]


def test_a_fresh_run_restores_nothing(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.restore()
    assert (learner.role.updates, learner.agent.loaded, learner.report.events) == (0, {}, [])


def test_restoring_continues_agent_and_counter(tmp_path) -> None:
    learner = Learner(tmp_path)
    for _ in range(3):
        learner.role.step()
    learner.role.save()
    restored = Learner(tmp_path)
    restored.role.restore()
    assert restored.role.updates == 3
    assert restored.agent.loaded["weights"].tolist() == [0, 1, 2]
    assert restored.report.events == [("restore", {"snapshot": "000000001234", "step": 1234, "updates": 3})]
    restored.role.save()
    assert restored.report.event_names() == ["restore"]


def stop_after(learner: Learner, steps: int) -> None:
    serve = learner.clients.sampler.answers["sample_batch_train"]

    def serve_some(arrays: Arrays) -> Arrays:
        if learner.served["train"] == steps:
            learner.context.stop.set()
            raise Stopped("asked to stop")
        return serve(arrays)

    learner.clients.sampler.answers["sample_batch_train"] = serve_some


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


def test_the_last_save_does_not_wait_for_a_role_that_is_gone(tmp_path) -> None:
    learner = Learner(tmp_path)
    stop_after(learner, 1)
    learner.clients.logger.connected = False
    learner.role.run()
    assert learner.report.events == [("save_failed", {"reason": "no connection"})]
    assert "save" not in learner.methods()


def test_run_by_hand_a_last_save_that_is_impossible_is_a_failure(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.context = replace(learner.context, by_hand=True)
    stop_after(learner, 1)
    learner.clients.replay.connected = False
    with pytest.raises(DeadlineExceeded, match="no connection"):
        learner.role.run()


@pytest.mark.parametrize("error", [Disconnected("gone"), DeadlineExceeded("no answer")], ids=lambda e: type(e).__name__)
def test_a_last_save_that_is_impossible_is_an_event_and_no_failure(tmp_path, error: Exception) -> None:
    learner = Learner(tmp_path)
    stop_after(learner, 1)

    def fail(_: Arrays) -> Arrays:
        raise error

    learner.clients.replay.answers["sizes"] = fail
    learner.role.run()
    assert learner.report.events == [("save_failed", {"reason": str(error)})]


def test_a_full_disk_costs_a_snapshot_but_not_the_run_unless_it_is_the_last(tmp_path, capsys) -> None:
    learner = Learner(tmp_path, save_every=-1)

    def fail(_: Arrays) -> Arrays:
        raise ReplayError("no space left")

    learner.clients.replay.answers["save"] = fail
    learner.role.step()
    learner.role.step()
    assert learner.report.event_names() == ["save_failed", "save_failed"]
    assert "no snapshot was taken: no space left" in capsys.readouterr().err
    learner = Learner(tmp_path)
    learner.clients.replay.answers["save"] = fail
    stop_after(learner, 1)
    with pytest.raises(ReplayError, match="no space left"):
        learner.role.run()


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


def test_replay_is_captured_before_the_agent_and_no_update_comes_between(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    order: list[str] = []
    save = learner.agent.save

    def agent_saved() -> Arrays:
        order.append("agent")
        return save()

    def replay_saved(_: Arrays) -> Arrays:
        order.append("replay")
        return learner.captured()

    learner.agent.save = agent_saved  # type: ignore[method-assign]
    learner.clients.replay.answers["save"] = replay_saved
    learner.role.save()
    assert order == ["replay", "agent"]


def in_background(learner: Learner) -> tuple[FakeClient, FakeClient]:
    """Gives the learner clients for a thread that writes snapshots; returns them."""
    clients = FakeClient(), FakeClient()
    learner.remake(clients=replace(learner.clients, saving=clients))  # type: ignore[arg-type]
    learner.clients.replay.answers["capture"] = lambda _: learner.captured()
    return clients


def test_training_goes_on_while_a_snapshot_is_written(tmp_path) -> None:
    learner = Learner(tmp_path, save_every=-1)
    replay, _ = in_background(learner)
    written = threading.Event()

    def saved(_: Arrays) -> Arrays:
        assert written.wait(20)
        return {}

    replay.answers["saved"] = saved
    for _ in range(5):
        learner.role.step()
    assert learner.role.updates == 5
    assert learner.methods().count("capture") == 1  # the next one waits for it
    assert Snapshots(tmp_path).newest() is None
    written.set()
    wait_until(lambda: not learner.role.snapshots.busy, 20, "the snapshot")
    assert Snapshots(tmp_path).manifest()["updates"] == 1
    learner.role.step()
    assert learner.methods().count("capture") == 2
    learner.context.stop.set()
    learner.role.run()  # waits for the one under way and takes the last one
    assert [detail["updates"] for event, detail in learner.report.events if event == "snapshot"] == [1, 6]


class OneThread(FakeClient):
    """As a real client, it is refused while another thread waits for one of its answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = threading.Event(), threading.Event()
        self.answers["saved"] = self._wait

    def _wait(self, _: Arrays) -> Arrays:
        self.asked.set()
        assert self.answer.wait(20)
        self.asked.clear()
        return {}

    def _enter(self) -> None:
        if self.asked.is_set():
            raise TransportError("used by two threads at once")

    def take_in(self) -> None:
        self._enter()

    def close(self) -> None:
        self._enter()
        super().close()


def writing(learner: Learner) -> OneThread:
    """A snapshot is under way when this returns; gives the client that its thread waits with."""
    replay = OneThread()
    in_background(learner)
    learner.remake(clients=replace(learner.clients, saving=(replay, FakeClient())))  # type: ignore[arg-type]
    learner.role.step()
    learner.role.save()
    assert replay.asked.wait(20)
    return replay


def test_a_run_that_ends_while_a_snapshot_is_written_takes_its_last_one_after_it(tmp_path) -> None:
    learner = Learner(tmp_path)
    replay = writing(learner)
    learner.role.step()
    learner.context.stop.set()
    learner.role.log = replay.answer.set  # type: ignore[method-assign]  # is called right before the wait for it
    learner.role.run()
    assert [detail["updates"] for event, detail in learner.report.events if event == "snapshot"] == [1, 2]
    learner.role.clients.close()
    assert replay.closed


def test_an_error_in_training_is_raised_though_a_snapshot_is_being_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dreamfleet.roles.snapshot_coordinator.GONE_AFTER_S", 0.01)
    learner = Learner(tmp_path)
    replay = writing(learner)
    learner.agent.train = lambda carry, batch: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        learner.role.run()
    learner.role.clients.close()  # no error of a client that is in use takes the place of the other one
    assert learner.clients.replay.closed
    assert not replay.closed
    replay.answer.set()
    learner.role.snapshots.await_written(20)


def test_a_snapshot_holds_the_agent_of_its_moment_though_training_changes_arrays_in_place(tmp_path) -> None:
    learner = Learner(tmp_path)
    replay, _ = in_background(learner)
    weights, written = np.zeros(3), threading.Event()
    learner.agent.save = lambda: {"weights": weights}  # type: ignore[method-assign]
    replay.answers["saved"] = lambda _: {"done": np.array(written.wait(20))}
    learner.role.step()
    learner.role.save()
    weights += 7
    written.set()
    learner.role.snapshots.await_written(20)
    folder = Snapshots(tmp_path).latest()
    assert folder is not None
    assert load_arrays(folder / "agent.safetensors")["weights"].tolist() == [0, 0, 0]


def test_a_snapshot_that_cannot_be_written_in_the_background_is_told_and_the_next_one_tried(tmp_path, capsys) -> None:
    learner = Learner(tmp_path, save_every=-1)
    replay, _ = in_background(learner)

    def fail(_: Arrays) -> Arrays:
        raise Disconnected("replay is gone")

    replay.answers["saved"] = fail
    learner.role.step()
    wait_until(lambda: not learner.role.snapshots.busy, 20, "the end of the first try")
    replay.answers.clear()
    learner.role.step()
    learner.role.snapshots.await_written(20)
    assert learner.report.events == [
        ("save_failed", {"reason": "replay is gone"}),
        ("snapshot", {"step": 1234, "updates": 2}),
    ]
    assert "no snapshot was taken: replay is gone" in capsys.readouterr().err


def test_somebody_who_asks_for_a_snapshot_gets_one(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.snapshots._should_look = LocalClock(-1)
    learner.role.step()
    assert learner.report.events == []
    requests = SnapshotRequests(tmp_path / "snapshots")
    token = requests.ask()
    learner.role.step()
    assert requests.answered(token) == {"token": token, "snapshot": "000000001234", "error": ""}
    assert requests.answered("another") is None
    learner.role.step()
    assert learner.report.event_names() == ["snapshot"]

    def fail(_: Arrays) -> Arrays:
        raise ReplayError("no space left")

    learner.clients.replay.answers["save"] = fail
    token = requests.ask()
    learner.role.step()
    assert (requests.answered(token) or {})["error"] == "no space left"


def test_steps_that_a_restarted_replay_lost_still_count(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    learner.stored(2050, lost=50)
    learner.role.save()
    manifest = Snapshots(tmp_path).manifest()
    assert (manifest["step"], manifest["lost"]) == (2100, 50)
    restored = Learner(tmp_path)
    restored.role.restore()
    restored.stored(2070, lost=50)
    restored.role.step()
    restored.role.save()
    assert Snapshots(tmp_path).manifest()["step"] == 2120


def test_replay_is_sent_back_to_where_the_agent_begins(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.restore()
    learner.role.step()
    learner.role.save()
    restored = Learner(tmp_path)
    restored.role.restore()
    sent = [{key: int(value) for key, value in call.items()} for call in (learner.calls[0][1], restored.calls[0][1])]
    assert sent == [{"snapshot": -1, "step": 0, "updates": 0}, {"snapshot": 1234, "step": 1234, "updates": 1}]
    assert restored.report.event_names() == ["restore"]


def test_a_learner_asks_until_replay_has_gone_back(tmp_path) -> None:
    learner = Learner(tmp_path)
    losses = [Disconnected("replay is going back"), Disconnected("the connection was lost")]

    def go_back(point: Arrays) -> Arrays:
        if losses:
            raise losses.pop(0)
        return {"step": point["step"]}

    learner.clients.sampler.answers["go_back"] = go_back  # type: ignore[attr-defined]
    learner.role.restore()
    assert learner.methods() == ["go_back"] * 3


def test_what_replay_lacks_of_a_snapshot_is_said_once(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    learner.role.save()
    restored = Learner(tmp_path)
    restored.lacks = 1234
    restored.role.restore()
    reason = "replay has no part of snapshot 1234"
    (lost,) = [detail for event, detail in restored.report.events if event == "steps_lost"]
    assert lost == {"steps": 1234, "reason": reason}
    (warning,) = [detail["text"] for event, detail in restored.report.events if event == "warning"]
    assert warning.startswith(f"{reason} in its run folder, so it begins empty and 1234 steps are lost: ")


def test_a_nearly_full_disk_puts_snapshots_off_until_somebody_asks_or_the_run_ends(tmp_path) -> None:
    learner = Learner(tmp_path, save_every=-1)
    learner.role.snapshots._should_look = LocalClock(-1)
    learner.context.disk_low.set()
    for _ in range(3):
        learner.role.step()
    (event, detail), *others = learner.report.events
    assert (event, others) == ("warning", [])  # once
    assert detail["text"].startswith("the disk is nearly full: no snapshot")
    requests = SnapshotRequests(tmp_path / "snapshots")
    requests.ask()
    learner.role.step()
    assert learner.report.events[1:] == [("snapshot", {"step": 1234, "updates": 4})]
    learner.role.step()
    assert len(learner.report.events) == 2
    learner.context.stop.set()
    learner.role.run()
    assert learner.report.events[2:] == [("snapshot", {"step": 1234, "updates": 5})]
    learner.context.disk_low.clear()
    learner.role.step()
    assert learner.report.events[3:] == [("snapshot", {"step": 1234, "updates": 6})]


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


def test_a_disk_that_takes_no_answer_does_not_end_training(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.snapshots._should_look = LocalClock(-1)
    requests = SnapshotRequests(tmp_path / "snapshots")
    requests.ask()
    (tmp_path / "snapshots" / "answer.json.tmp").mkdir()
    learner.role.step()
    assert learner.report.event_names() == ["snapshot"]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("last", [False, True], ids=["while it trains", "at its end"])
def test_an_agent_that_is_not_finite_ends_the_run_and_is_not_saved(tmp_path, background: bool, last: bool) -> None:
    learner = Learner(tmp_path, save_every=0 if last else -1)
    if background:
        in_background(learner)
    learner.role.step()
    learner.role.snapshots.await_written(20)
    learner.role.save()
    learner.role.snapshots.await_written(20)
    weights = np.ones(3, ml_dtypes.bfloat16)
    weights[1] = np.nan
    learner.agent.save = lambda: {"count": np.array(2), "weights": weights}  # type: ignore[method-assign]
    if last:
        learner.role.step()
        learner.context.stop.set()
    else:
        stop_after(learner, 20)
    with pytest.raises(NonFinite, match="'weights' is not finite after update 2, so no snapshot is taken"):
        learner.role.run()
    assert [detail["updates"] for event, detail in learner.report.events if event == "snapshot"] == [1]
    assert Snapshots(tmp_path).manifest()["updates"] == 1
    assert [path.name for path in (tmp_path / "snapshots").glob("0*") if path.suffix != ".tmp"] == ["000000001234"]


def test_a_snapshot_that_fails_because_a_role_is_gone_is_taken_once_it_is_back(tmp_path) -> None:
    learner = Learner(tmp_path, save_every=1000)
    learner.role.snapshots.request()
    save = learner.clients.replay.answers["save"]

    def fail(_: Arrays) -> Arrays:
        raise Disconnected("replay is gone")

    learner.clients.replay.answers["save"] = fail
    learner.role.step()
    learner.clients.replay.answers["save"] = save
    learner.role.step()
    assert learner.report.event_names() == ["save_failed", "snapshot"]


def test_a_damaged_snapshot_is_an_event(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    learner.role.save()
    learner.stored(2000)
    learner.role.save()
    (tmp_path / "snapshots" / "000000002000" / "agent.safetensors").write_bytes(b"")
    restored = Learner(tmp_path)
    restored.role.restore()
    (event, detail), *_ = restored.report.events
    assert (event, detail["snapshot"]) == ("damaged", "000000002000")
    assert detail["reason"].startswith("agent.safetensors has 0 bytes instead of")
    assert restored.report.event_names() == ["damaged", "restore"]


def test_a_run_that_begins_may_start_from_the_weights_of_another(tmp_path) -> None:
    learner = Learner(tmp_path / "first")
    learner.agent.save = lambda: {"weights": np.full(3, 7.0), "count": np.array(5)}  # type: ignore[method-assign]
    learner.role.step()
    learner.role.save()
    second = Learner(tmp_path / "second", from_checkpoint=str(tmp_path / "first"), from_checkpoint_regex="wei")
    second.agent.save = lambda: {"weights": np.zeros(3), "count": np.array(0)}  # type: ignore[method-assign]
    second.role.restore()
    assert second.agent.loaded["weights"].tolist() == [7, 7, 7]
    assert (second.agent.loaded["count"], second.role.updates) == (0, 0)
    (_, detail), (_, said) = second.report.events
    assert detail == {"taken": ["weights"], "skipped": ["count"], "mismatched": []}
    assert "1 arrays loaded; 1 skipped" in said["text"]
    second.role.step()
    second.role.save()
    again = Learner(tmp_path / "second", from_checkpoint=str(tmp_path / "gone"))
    again.role.restore()  # it has a snapshot of its own by now
    assert again.role.updates == 1


OPTIMIZER = ["opt/1/step", *(f"opt/1/{kind}/{part}" for kind in ("square", "momentum") for part in ("body", "head"))]


def agent_arrays(value: float, head: int) -> Arrays:
    """A body of two numbers, a head of `head` numbers, and an optimiser of both."""
    sizes = {"world/body": 2, "world/head": head, "acted": 1}
    sizes |= {name: {"body": 2, "head": head}.get(name.split("/")[-1], 1) for name in OPTIMIZER}
    return {name: np.full(size, value) for name, size in sizes.items()}


def begin_from_another(tmp_path: Path, head: int, pattern: str) -> Learner:
    """A learner of an agent of zeros, with a head of three, that begins from one of sevens."""
    first = Learner(tmp_path / "first")
    first.agent.save = lambda: agent_arrays(7.0, head)  # type: ignore[method-assign]
    first.role.step()
    first.role.save()
    second = Learner(tmp_path / "second", from_checkpoint=str(tmp_path / "first"), from_checkpoint_regex=pattern)
    new = agent_arrays(0.0, 3)
    second.agent.save = lambda: new  # type: ignore[method-assign]
    second.agent.optimizer_to_reset = lambda taken: optimizer_to_reset(list(new), taken)  # type: ignore[attr-defined]
    second.role.restore()
    return second


@pytest.mark.parametrize(
    ("head", "pattern", "loaded", "said"),
    [
        (3, ".*", True, False),
        (3, "world/|opt/", True, False),
        (4, ".*", False, True),  # the head does not fit
        (3, "body|opt/", False, True),  # the head is not asked for
        (3, "world/", False, False),  # the optimiser is not asked for
    ],
)
def test_an_optimiser_is_loaded_with_all_that_it_trains_and_else_begins_at_zero(
    tmp_path, head: int, pattern: str, loaded: bool, said: bool
) -> None:
    learner = begin_from_another(tmp_path, head, pattern)
    assert learner.agent.loaded["world/body"].tolist() == [7, 7]
    for name in OPTIMIZER:
        assert learner.agent.loaded[name].any() == loaded, name
    (_, detail), (_, warning) = learner.report.events
    assert set(OPTIMIZER) & set(detail["taken"]) == (set(OPTIMIZER) if loaded else set())
    assert bool(detail.get("reset")) == said
    words = "the optimiser is reset: its moments, its step and so the warm-up begin at zero"
    assert (words in warning["text"]) == said


def test_an_agent_of_an_earlier_version_is_read_under_the_names_of_today(tmp_path) -> None:
    first = Learner(tmp_path / "first")
    former = {name.replace("opt/1", "opt/2"): value for name, value in agent_arrays(7.0, 3).items()}
    first.agent.save = lambda: former  # type: ignore[method-assign]
    first.role.step()
    first.role.save()
    second = Learner(tmp_path / "second", from_checkpoint=str(tmp_path / "first"))
    second.agent.save = lambda: agent_arrays(0.0, 3)  # type: ignore[method-assign]
    second.agent.upgrade_arrays = lambda data: {  # type: ignore[attr-defined]
        name.replace("opt/2", "opt/1"): value for name, value in data.items()
    }
    second.role.restore()
    assert all(second.agent.loaded[name].all() for name in agent_arrays(0.0, 3))
    (_, detail), _ = second.report.events
    assert detail["mismatched"] == []


def test_an_optimiser_without_what_it_trains_is_refused(tmp_path) -> None:
    with pytest.raises(
        BadInput, match=r"from_checkpoint_regex='opt/': .* only together with every array that it trains"
    ):
        begin_from_another(tmp_path, 3, "opt/")
