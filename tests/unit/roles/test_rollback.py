"""Which snapshot of its own replay goes back to, and what is left of the agent before."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import RoleContext
from dreamfleet.core.errors import Disconnected, ReplayError
from dreamfleet.core.stop import Stop
from dreamfleet.replay.store import ReplayOptions, ReplayStore
from dreamfleet.replay.stream import ReplayStream
from dreamfleet.roles.connect import EPOCH, RUN_STEP, snapshot_request
from dreamfleet.roles.replay import ReplayRole, run_replay
from dreamfleet.roles.rollback import BEGINNING, Point, own_part, point_of, send_back
from dreamfleet.transport.client import Client
from support.fakes import FakeReporter
from support.replay_roles import fill, make_role, steps

WAIT_S = 20.0


def save(role: ReplayRole, snapshot: int, updates: int = 1, *, commit: bool = True) -> Point:
    """What the learner asks of a replay with a run folder of its own."""
    asked = snapshot_request(snapshot, "token")
    answer = role.save(asked)
    point = Point(snapshot, int(answer["step"]), updates)
    if commit:
        role.committed({**point.message(), **asked})
    return point


def test_replay_goes_back_to_the_snapshot_that_is_named(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 5)
    early = save(role, 5)
    fill(role, 2, start=5)
    late = save(role, 7)
    for point in (early, late):
        folder = own_part(Snapshots(tmp_path), point)
        assert folder is not None
        assert point_of(folder) == point
        again = make_role(tmp_path)
        again.restore(point)
        assert again.sizes({})["inserts"] == point.step


def test_a_part_that_the_agent_died_before_committing_counts(tmp_path) -> None:
    """The agent commits its own first, so what it goes back to is complete here."""
    role = make_role(tmp_path)
    fill(role, 5)
    save(role, 5)
    fill(role, 2, start=5)
    point = save(role, 7, updates=3, commit=False)
    folder = own_part(Snapshots(tmp_path), point)
    assert folder == tmp_path / "snapshots" / "000000000007"
    assert point_of(folder) == point
    again = make_role(tmp_path)
    again.restore(point)
    assert again.sizes({})["inserts"] == 7


def test_a_part_that_was_never_finished_does_not_count(tmp_path) -> None:
    role = make_role(tmp_path)
    fill(role, 5)
    first = save(role, 5)
    fill(role, 2, start=5)
    point = save(role, 7, commit=False)
    (tmp_path / "snapshots" / "000000000007.tmp" / "outside.json").unlink()
    folder = own_part(Snapshots(tmp_path), point)
    assert folder is not None
    assert point_of(folder) == first


def test_without_any_part_replay_begins_empty(tmp_path) -> None:
    assert own_part(Snapshots(tmp_path), Point(7, 7, 1)) is None
    assert own_part(Snapshots(tmp_path), BEGINNING) is None


@pytest.mark.parametrize("point", [BEGINNING, Point(3, 3, 1)])
def test_parts_that_are_all_newer_are_of_another_run(tmp_path, point: Point) -> None:
    role = make_role(tmp_path)
    fill(role, 5)
    save(role, 5)
    with pytest.raises(ReplayError, match=r"has no snapshot before step 5, .* move .*/snapshots aside on that machine"):
        own_part(Snapshots(tmp_path), point)


def test_a_replay_that_nobody_has_used_is_where_it_began(tmp_path) -> None:
    role = make_role(tmp_path)
    role.restore()
    assert role.go_back(BEGINNING.message()) == {"step": 0}
    fill(role, 5)
    point = save(role, 5)
    again = make_role(tmp_path)
    again.restore()
    assert again.go_back(point.message()) == {"step": 5}
    with pytest.raises(Disconnected, match="ask again"):
        role.go_back(point.message())  # it has the same steps, but the windows drawn since are counted


def test_steps_of_the_former_agent_are_refused_once_the_next_one_has_begun(tmp_path) -> None:
    role = make_role(tmp_path)
    role.restore()
    former = role.sizes({})[EPOCH]
    role.go_back(BEGINNING.message())
    for insert in (role.add_batch, role.add_batch_eval):
        with pytest.raises(Disconnected, match="from an agent that has ended"):
            insert({**steps([1]), EPOCH: former})
        insert({**steps([1]), EPOCH: role.sizes({})[EPOCH]})
    assert (len(role.train), role.sizes({})["inserts"]) == (0, 1)


class Served:
    """A replay role in a thread, behind a socket."""

    def __init__(self, folder: Path) -> None:
        self.stop, self.report = Stop(), FakeReporter()
        self.stores: list[weakref.ref[ReplayStore]] = []
        self.alive_at_start: list[int] = []  # former stores in memory whenever one is made
        shape = {"batch_size": 2, "batch_length": 4, "replay_context": 1, "train_ratio": 4.0, "wait_timeout_s": WAIT_S}
        self.address = f"ipc://{folder}/replay"
        self.args = FleetArgs(logdir=folder, replay_addr=self.address, logger_addr=f"ipc://{folder}/none", **shape)
        self._folder = folder
        self._thread = threading.Thread(target=self._run)

    def _make(self, mode: str) -> ReplayStore:
        self.alive_at_start.append(sum(ref() is not None for ref in self.stores if mode == "train"))
        store = ReplayStore(ReplayOptions(length=5, capacity=100, context=1, folder=self._folder / mode))
        self.stores.append(weakref.ref(store))
        return store

    def _run(self) -> None:
        context = RoleContext("replay", self.stop, self.report)
        make_stream = lambda store, mode: ReplayStream(store, mode, 2, 4, 1, 1)  # noqa: E731
        run_replay(lambda: self._make("train"), lambda: self._make("eval"), make_stream, self.args, context)

    def client(self, name: str) -> Client:
        return Client(self.address, name=name, timeout_s=WAIT_S)

    def __enter__(self) -> Served:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def test_nothing_of_the_former_agent_is_left_after_going_back(tmp_path) -> None:
    context = RoleContext("learner", report=FakeReporter())
    with Served(tmp_path) as served, served.client("actor") as actor, served.client("sampler") as former:
        epoch = actor.call("sizes").result()[EPOCH]
        for value in range(5):
            actor.call("add_batch", {**steps([value]), EPOCH: epoch, RUN_STEP: np.array(value + 1)}).result()
        waiting = [former.call("sample_batch_train") for _ in range(3)]  # for steps that will never come
        with served.client("learner") as learner:
            send_back(learner, None, context)
            assert learner.call("sizes").result()["inserts"] == 0
            for future in waiting:
                with pytest.raises(Exception, match=r"closed|lost|ended"):
                    future.result()
            actor.poll()
            with pytest.raises(Disconnected):
                actor.call("add_batch", {**steps([9]), EPOCH: epoch}).result()
            assert learner.call("sizes").result()["inserts"] == 0
            send_back(learner, None, context)  # at once, since nobody has used it
        gc.collect()
        assert served.alive_at_start == [0] * 4
        assert served.report.states == ["ready", "ready"]
