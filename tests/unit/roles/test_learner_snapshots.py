"""How the learner takes snapshots: of every part, while it trains, at its end, and when something fails."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from dreamfleet import __version__
from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.requests import SnapshotRequests
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.core.clock import LocalClock
from dreamfleet.core.errors import (
    DeadlineExceeded,
    Disconnected,
    NonFinite,
    ReplayError,
    TransportError,
)
from dreamfleet.core.interfaces import Arrays
from support.fakes import FakeClient
from support.fleet_probe import wait_until
from support.learners import Learner, stop_after


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

    def poll(self) -> None:
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
