"""The learner's loop, one step at a time, with fake clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import DeadlineExceeded, Disconnected, ReplayError, Stopped, TransportError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.roles.learner import PREFETCH, LearnerClients, LearnerRole
from fakes import FakeClient, SummingAgent, make_context


class Learner:
    """A learner role whose clients share one list of calls. Batches count: the n-th train batch holds n."""

    def __init__(self, logdir: Path, eval_items: int = 0, **args: Any) -> None:
        self.calls: list[tuple[str, Arrays]] = []
        self.served = {"train": 0, "report": 0, "eval": 0}
        self.sizes = {"train": 10, "eval": eval_items, "inserts": 1234}
        self.agent = SummingAgent()
        self.context, self.report = make_context("learner")
        samples = {f"sample_batch_{kind}": self._serve(kind) for kind in self.served}
        self.clients = LearnerClients(
            sampler=FakeClient(self.calls, **samples),
            updater=FakeClient(self.calls),
            replay=FakeClient(
                self.calls,
                sizes=lambda _: {k: np.array(v) for k, v in self.sizes.items()},
                save=lambda _: {"inserts": np.array(self.sizes["inserts"])},
            ),
            logger=FakeClient(self.calls),
        )
        never = {"log_every": 0, "report_every": 0, "save_every": 0}
        self.args = FleetArgs(logdir=logdir, batch_size=2, batch_length=3, **{**never, **args})
        self.role = LearnerRole(self.agent, self.args, self.clients, self.context)

    def _serve(self, kind: str) -> Any:
        def serve(_: Arrays) -> Arrays:
            self.served[kind] += 1
            return {"value": np.full((2, 3), self.served[kind]), "stepid": np.zeros((2, 3, 2), np.int64)}

        return serve

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
    learner.role.step()
    general, training = learner.metrics()
    assert general["metrics"].keys() >= {
        "fps/train",
        "fps/updates",
        "timer/learner/train/avg_ms",
        "wait/learner/replay_to_sample_s",
    }
    assert training == {"prefix": "train", "metrics": {"loss": 0}}  # the image is no scalar


def test_a_save_holds_every_part_before_it_counts(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    pending = tmp_path / "snapshots" / "000000001234.tmp"

    def part(arrays: Arrays) -> Arrays:
        assert int(arrays["snapshot"]) == 1234
        assert (pending / "agent.safetensors").exists()
        assert not (tmp_path / "snapshots" / "latest").exists()
        return {"inserts": np.array(1240)}  # six more steps came in the meantime

    def committed(arrays: Arrays) -> Arrays:
        assert {key: int(value) for key, value in arrays.items()} == {"snapshot": 1234, "step": 1240, "updates": 1}
        assert (tmp_path / "snapshots" / "latest").exists()
        return {}

    learner.clients.replay.answers["committed"] = learner.clients.logger.answers["committed"] = committed
    learner.clients.replay.answers["save"] = learner.clients.logger.answers["save"] = part
    learner.calls.clear()
    learner.role.save()
    assert learner.methods() == ["sizes", "save", "save", "committed", "committed"]
    assert [method for method, _ in learner.clients.logger.waits] == ["save", "committed"]
    final = tmp_path / "snapshots" / "000000001234"
    assert (tmp_path / "snapshots" / "latest").read_text() == final.name
    assert not pending.exists()
    manifest = json.loads((final / "manifest.json").read_text())
    assert (manifest["step"], manifest["updates"]) == (1240, 1)
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
    learner.sizes["inserts"] = 2000
    learner.role.save()
    assert learner.report.events[2:] == [("snapshot", {"step": 2000, "updates": 2})]


def test_a_part_that_fails_leaves_the_previous_snapshot_in_place(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    learner.role.save()

    def fail(_: Arrays) -> Arrays:
        raise Disconnected("replay is gone")

    learner.clients.replay.answers["save"] = fail
    learner.sizes["inserts"] = 2000
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
    assert restored.report.events == [("restore", {"snapshot": "000000001234", "updates": 3})]
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
