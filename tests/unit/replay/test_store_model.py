"""The store against a brute-force model, through random interleavings of everything it can do."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.store import ReplayStore
from support.replays import BFLOAT16, Model, make_rows, make_store, wait_for_writes, windows_of

FRACS = [
    {"uniform": 1.0},
    {"priority": 1.0},
    {"recency": 1.0},
    {"uniform": 0.5, "recency": 0.5},
    {"uniform": 0.5, "priority": 0.5},
    {"uniform": 0.4, "priority": 0.3, "recency": 0.3},
]
SLOTS = 3
BATCHES = st.lists(
    st.tuples(st.integers(0, SLOTS - 1), st.booleans(), st.booleans()),
    min_size=1,
    max_size=SLOTS,
    unique_by=lambda r: r[0],
)


class StoreAgainstModel(RuleBasedStateMachine):
    """Streams get new ids after a restore, as environments that start again do."""

    @initialize(
        length=st.integers(1, 5),
        capacity=st.integers(3, 30),
        chunksize=st.integers(1, 8),
        context=st.integers(0, 1),
        online=st.booleans(),
        fracs=st.sampled_from(FRACS),
        zero_on_sample=st.booleans(),
        seed=st.integers(0, 1000),
    )
    def begin(self, zero_on_sample: bool, length: int, capacity: int, **options: Any) -> None:
        priority = {"exponent": 0.8, "maxfrac": 0.5, "initial": float("inf"), "zero_on_sample": zero_on_sample}
        self.folder = Path(tempfile.mkdtemp(prefix="replay-model-"))
        self.online, self.context = options["online"], options["context"]
        self.make: Callable[[], ReplayStore] = lambda: make_store(
            length, capacity, self.folder, priority=priority, **options
        )
        self.store, self.model = self.make(), Model(length, capacity)
        self.ids = list(range(SLOTS))
        self.count = 0
        self.sampled: list[np.ndarray] = []
        self.saved: tuple[Arrays, Model] | None = None
        self.committed: tuple[Arrays, Model] | None = None

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    @rule(batches=st.lists(BATCHES, min_size=1, max_size=6))
    def insert(self, batches: list[list[tuple[int, bool, bool]]]) -> None:
        for batch in batches:
            for slot in range(SLOTS):
                self._renew_if_idle(slot)
            streams = [self.ids[slot] for slot, _, _ in batch]
            values = list(range(self.count, self.count + len(batch)))
            self.count += len(batch)
            rows = make_rows(streams, values, [first for _, first, _ in batch], [last for _, _, last in batch])
            self.store.add_batch(rows)
            self.model.add(rows)

    def _renew_if_idle(self, slot: int) -> None:
        """Whether a stream that idles for long is forgotten depends on chunks, of which the model knows nothing."""
        touched = self.model.touched.get(self.ids[slot], self.model.inserts)
        if self.model.inserts - touched >= self.model.capacity - SLOTS:
            self.ids[slot] = max(self.ids) + 1

    @precondition(lambda self: self.model.items)
    @rule(count=st.integers(1, 5), mode=st.sampled_from(["train", "report"]))
    def sample(self, count: int, mode: str) -> None:
        batch = self.store.sample(count, mode)
        self.sampled.append(batch["stepid"])
        assert all(value.flags["C_CONTIGUOUS"] for value in batch.values())
        for row in range(count):
            stream, start = batch["stepid"][row, 0].tolist()
            assert batch["stepid"][row].tolist() == [[stream, start + t] for t in range(self.model.length)]
            fresh = self.model.next_fresh() if mode == "train" and self.online else None
            assert (stream, start) == fresh if fresh else (stream, start) in self.model.items
            found = {key: batch[key][row].tolist() for key in batch if key != "stepid"}
            assert found == self.model.window(stream, start, self.context)

    @precondition(lambda self: self.sampled)
    @rule(which=st.integers(0, 1000), value=st.floats(0, 9, width=16), skip=st.integers(0, 2), priority=st.booleans())
    def update(self, which: int, value: float, skip: int, priority: bool) -> None:
        stepid = self.sampled[which % len(self.sampled)]
        stepid = stepid[:, min(skip, self.model.length - 1) :]
        self.count += 1
        deter = self.count + np.arange(stepid[..., :1].size * 2, dtype=np.float32).reshape(*stepid.shape[:2], 2) / 1e3
        latents = {"dyn/deter": deter, "dyn/stoch": np.full((*stepid.shape[:2], 1), self.count % 200, BFLOAT16)}
        extra = {"priority": np.full(stepid.shape[:2], value, np.float32)} if priority else {}
        gone = self.store.update({"stepid": stepid, **latents, **extra})
        least, most = 0, 0
        for row, ids in enumerate(stepid[:, 0].tolist()):
            bounds = self.model.update(*ids, {key: latent[row] for key, latent in latents.items()})
            least, most = least + bounds[0], most + bounds[1]
        assert least <= gone <= most
        self.model.missed += gone
        self.model.updated += stepid[..., 0].size - gone

    @rule()
    def save(self) -> None:
        model = self.model.copy()
        self.saved = self.store.save(), model

    @rule(batches=st.lists(BATCHES, min_size=1, max_size=6), which=st.integers(0, 1000))
    def save_while_steps_and_updates_come_in(self, batches: list[list[tuple[int, bool, bool]]], which: int) -> None:
        model = self.model.copy()
        files = self.store._persistence._files
        me, write = threading.get_ident(), files.write

        def busy(*args: Any) -> None:
            if threading.get_ident() == me:
                files.write = write
                self.insert(batches)
                if self.sampled:
                    self.update(which, 1.0, 0, True)
            write(*args)

        files.write = busy
        self.saved = self.store.save(), model
        files.write = write

    @precondition(lambda self: self.saved)
    @rule()
    def commit(self) -> None:
        self.store.committed()
        self.committed, self.saved = self.saved, None

    @precondition(lambda self: self.committed)
    @rule()
    def restore(self) -> None:
        assert self.committed is not None
        self.store.close()
        self.store = self.make()
        self.store.load(self.committed[0])
        self.model = self.committed[1].copy()
        assert self.store.stats()["chunks_damaged"] == 0
        self.saved = None
        held = set(self.model.items)
        self.sampled = [stepid for stepid in self.sampled if all(tuple(row[0]) in held for row in stepid.tolist())]
        self.ids = [max(self.ids) + 1 + slot for slot in range(SLOTS)]

    @invariant()
    def holds_the_same_windows_in_the_same_order(self) -> None:
        if hasattr(self, "store"):
            assert len(self.store) == len(self.model.items)
            assert windows_of(self.store) == self.model.items
            stats = self.store.stats()
            assert stats["inserts"] == self.model.inserts
            assert (stats["updates"], stats["updates_missed"]) == (self.model.updated, self.model.missed)

    @invariant()
    def keeps_only_files_that_something_needs(self) -> None:
        if hasattr(self, "store") and self.store._memory is not None:
            wait_for_writes(self.store)
            held = {f"{stream}-" for stream in self.model.steps}
            assert all(path.name.startswith(tuple(held)) for path in self.folder.glob("*.safetensors"))


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
