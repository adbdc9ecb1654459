"""The store against a slow plain model, and its promises one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamfleet.checkpoint.arrays import load_arrays, save_arrays
from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.store import ReplayStore


def make_rows(
    streams: list[int], values: list[int], firsts: list[bool] | None = None, lasts: list[bool] | None = None
) -> Arrays:
    return {
        "stream": np.array(streams, np.int64),
        "value": np.array(values, np.int64),
        "latent": np.array([[value, -value] for value in values], np.float32),
        "is_first": np.array(firsts or [False] * len(values)),
        "is_last": np.array(lasts or [False] * len(values)),
    }


def fill(store: ReplayStore, stream: int, count: int, start: int = 0) -> None:
    """Steps whose value is their stream times 1000 plus their index."""
    for index in range(start, start + count):
        store.add_batch(make_rows([stream], [1000 * stream + index]))


class Model:
    """Keeps every step ever added in a list per stream, and the windows that can be sampled in another."""

    def __init__(self, length: int, capacity: int) -> None:
        self.length, self.capacity = length, capacity
        self.steps: dict[int, list[dict[str, Any]]] = {}
        self.first: dict[int, int] = {}
        self.items: list[tuple[int, int]] = []
        self.fresh: list[tuple[int, int]] = []

    def add(self, rows: Arrays) -> None:
        for row, stream in enumerate(rows["stream"].tolist()):
            steps = self.steps.setdefault(stream, [])
            first = self.first.setdefault(stream, 0)
            steps.append({key: value[row].copy() for key, value in rows.items() if key != "stream"})
            start = len(steps) - self.length
            if start >= first:
                self.items.append((stream, start))
                if start % self.length == 0:
                    self.fresh.append((stream, start))
            while len(self.items) > self.capacity:
                self.evict(stream)

    def evict(self, current: int) -> None:
        stream, start = self.items.pop(0)
        self.first[stream] = start + 1
        if stream != current and all(other != stream for other, _ in self.items):
            self.first[stream] = len(self.steps[stream])  # fell behind all others: what is left of it goes, too

    def next_fresh(self) -> tuple[int, int] | None:
        while self.fresh:
            stream, start = self.fresh.pop(0)
            if start >= self.first[stream]:
                return stream, start
        return None

    def window(self, stream: int, start: int) -> dict[str, list[Any]]:
        steps = self.steps[stream][start : start + self.length]
        window = {key: [step[key].tolist() for step in steps] for key in steps[0]}
        window["is_first"][0] = True
        for t in range(self.length - 1):
            window["is_last"][t] = window["is_last"][t] or window["is_first"][t + 1]
        return window

    def update(self, stream: int, start: int, latents: np.ndarray) -> int:
        """Returns how many of the steps are gone."""
        missing = 0
        for offset, latent in enumerate(latents):
            if self.first[stream] <= start + offset < len(self.steps[stream]):
                self.steps[stream][start + offset]["latent"] = latent
            else:
                missing += 1
        return missing


OPS = st.one_of(
    st.tuples(
        st.just("add"), st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, unique_by=lambda row: row[0])
    ),
    st.tuples(st.sampled_from(["train", "report"]), st.integers(1, 3)),
    st.tuples(st.just("update"), st.integers(0, 100)),
)


@settings(max_examples=150, deadline=None)
@given(
    ops=st.lists(OPS, min_size=10, max_size=80),
    length=st.integers(1, 5),
    capacity=st.integers(1, 12),
    chunksize=st.integers(1, 7),
    online=st.booleans(),
)
def test_behaves_like_the_plain_model(
    ops: list[tuple[str, Any]], length: int, capacity: int, chunksize: int, online: bool
) -> None:
    store, model = ReplayStore(length, capacity, chunksize, online), Model(length, capacity)
    sampled: list[np.ndarray] = []
    count = 0
    for op, argument in ops:
        if op == "add":
            streams, firsts = [row[0] for row in argument], [row[1] for row in argument]
            rows = make_rows(streams, list(range(count, count + len(streams))), firsts)
            count += len(streams)
            store.add_batch(rows)
            model.add(rows)
        elif op == "update" and sampled:
            stepid = sampled[argument % len(sampled)]
            latent = np.full((*stepid.shape[:2], 2), count + 0.5, np.float32)
            gone = [model.update(*ids[0].tolist(), latent[row]) for row, ids in enumerate(stepid)]
            assert store.update({"stepid": stepid, "latent": latent}) == sum(gone)
            count += 1
        elif op in ("train", "report") and model.items:
            batch = store.sample(argument, op)
            sampled.append(batch["stepid"])
            for row in range(argument):
                expect_window(model, batch, row, op == "train" and online)
        assert len(store) == len(model.items)


def expect_window(model: Model, batch: Arrays, row: int, online: bool) -> None:
    stream, start = batch["stepid"][row, 0].tolist()
    assert batch["stepid"][row].tolist() == [[stream, start + t] for t in range(model.length)]
    fresh = model.next_fresh() if online else None
    assert (stream, start) == fresh if fresh else (stream, start) in model.items
    assert {key: batch[key][row].tolist() for key in batch if key != "stepid"} == model.window(stream, start)


def test_a_window_is_available_from_the_step_that_completes_it() -> None:
    store = ReplayStore(length=3, capacity=10)
    fill(store, 1, 2)
    with pytest.raises(ReplayError, match="no window of 3 steps"):
        store.sample(1, "train")
    fill(store, 1, 1, start=2)
    assert len(store) == 1
    assert store.sample(1, "train")["value"].tolist() == [[1000, 1001, 1002]]


def test_many_short_streams_make_no_window() -> None:
    store = ReplayStore(length=3, capacity=10)
    for stream in range(20):
        fill(store, stream, 2)
    assert len(store) == 0


def test_every_window_is_drawn_equally_often() -> None:
    store = ReplayStore(length=2, capacity=100, chunksize=3)
    fill(store, 1, 6)
    fill(store, 2, 6)  # five windows in each stream
    counts = Counter(store.sample(10_000, "train")["value"][:, 0].tolist())
    assert sorted(counts) == [1000, 1001, 1002, 1003, 1004, 2000, 2001, 2002, 2003, 2004]
    assert all(abs(n - 1000) < 150 for n in counts.values())  # five standard deviations of 30


def test_online_serves_each_stretch_of_a_stream_exactly_once_and_in_order() -> None:
    store = ReplayStore(length=4, capacity=1000, chunksize=3, online=True)
    served = []
    for index in range(40):
        store.add_batch(make_rows([1, 2], [1000 + index, 2000 + index]))
        if index % 8 == 7:
            served += store.sample(4, "train")["value"].tolist()
    for stream in (1, 2):
        values = [value for window in served for value in window if value // 1000 == stream]
        assert values == list(range(1000 * stream, 1000 * stream + 40))


def test_reports_leave_the_online_windows_to_training() -> None:
    store = ReplayStore(length=2, capacity=100, online=True)
    fill(store, 1, 6)
    store.sample(50, "report")
    assert store.sample(3, "train")["value"].tolist() == [[1000, 1001], [1002, 1003], [1004, 1005]]


def test_online_skips_windows_that_were_evicted() -> None:
    store = ReplayStore(length=2, capacity=2, online=True)
    fill(store, 1, 7)  # windows from 4 and 5 are left
    assert store.sample(1, "train")["value"].tolist() == [[1004, 1005]]


def test_marks_borders_of_the_window_and_of_abandoned_episodes() -> None:
    store = ReplayStore(length=5, capacity=10)
    firsts = [False, False, True, False, True]
    lasts = [False, False, False, True, False]
    for value, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
        store.add_batch(make_rows([0], [value], [first], [last]))
    batch = store.sample(1, "train")
    assert batch["is_first"].tolist() == [[True, False, True, False, True]]
    assert batch["is_last"].tolist() == [[False, True, False, True, False]]


def test_marking_a_window_leaves_the_stored_steps_alone() -> None:
    store = ReplayStore(length=2, capacity=10)
    fill(store, 0, 3)
    for _ in range(20):
        batch = store.sample(1, "train")
        assert batch["is_first"].tolist() == [[True, False]]
        assert batch["is_last"].tolist() == [[False, False]]


def test_the_oldest_windows_go_first_and_take_their_chunks_along() -> None:
    store = ReplayStore(length=3, capacity=2, chunksize=4)
    fill(store, 1, 20)  # windows from 16 and 17 are left: one chunk of four steps
    assert len(store) == 2
    assert set(store.sample(100, "train")["value"][:, 0].tolist()) == {1016, 1017}
    assert store.stats()["chunks"] == 1
    assert store.stats()["streams"] == 1


def test_a_stream_without_windows_left_is_forgotten() -> None:
    store = ReplayStore(length=3, capacity=2, chunksize=4)
    fill(store, 1, 3)
    fill(store, 2, 10)
    assert store.stats()["streams"] == 1


def test_a_forgotten_stream_that_goes_on_names_no_step_twice() -> None:
    store = ReplayStore(length=2, capacity=2)
    fill(store, 1, 2)
    old = store.sample(1, "train")["stepid"]
    fill(store, 2, 3)
    fill(store, 1, 2, start=2)
    assert store.update({"stepid": old, "latent": np.zeros((1, 2, 2), np.float32)}) == 2
    windows = store.sample(50, "report")
    assert [[1, 2], [1, 3]] in windows["stepid"].tolist()
    assert (windows["latent"] != 0).all()


def test_update_writes_where_the_step_is_sampled_again_and_counts_what_is_gone() -> None:
    store = ReplayStore(length=3, capacity=2, chunksize=2)
    fill(store, 1, 3)
    batch = store.sample(1, "train")
    fill(store, 1, 2, start=3)  # windows from 1 and 2 are left, step 0 is gone
    latent = np.arange(6, dtype=np.float32).reshape(1, 3, 2)
    assert store.update({"stepid": batch["stepid"], "latent": latent}) == 1
    assert store.stats()["updates"] == 2
    rows = store.sample(50, "train")
    found = {value: rows["latent"][rows["value"] == value][0].tolist() for value in range(1001, 1005)}
    assert found == {1001: [2, 3], 1002: [4, 5], 1003: [1003, -1003], 1004: [1004, -1004]}


def test_update_of_an_unknown_stream_or_of_steps_to_come_changes_nothing() -> None:
    store = ReplayStore(length=2, capacity=10, chunksize=4)
    fill(store, 1, 2)
    stepid = np.array([[[9, 0], [9, 1]], [[1, 1], [1, 2]], [[1, 50], [1, 51]]])
    assert store.update({"stepid": stepid, "latent": np.ones((3, 2, 2), np.float32)}) == 5
    fill(store, 1, 1, start=2)
    assert store.sample(1, "train")["latent"].max() <= 1002


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"value": np.zeros(1, np.int32)}, "int32"),
        ({"latent": np.zeros((1, 3), np.float32)}, "latent"),
        ({"extra": np.zeros(1)}, "extra"),
    ],
)
def test_a_step_that_looks_different_from_the_first_is_refused(change: Arrays, named: str) -> None:
    store = ReplayStore(length=2, capacity=10)
    fill(store, 1, 1)
    with pytest.raises(ReplayError, match=f"differ from the first step's.*{named}"):
        store.add_batch({**make_rows([1], [1]), **change})
    fill(store, 1, 1, start=1)
    assert store.sample(1, "train")["value"].tolist() == [[1000, 1001]]


def test_updates_that_do_not_match_what_is_stored_are_refused() -> None:
    store = ReplayStore(length=2, capacity=10)
    fill(store, 1, 4)
    stepid = store.sample(2, "train")["stepid"]
    with pytest.raises(ReplayError, match="update of 'latent' does not match"):
        store.update({"stepid": stepid, "latent": np.zeros((2, 2, 2), np.float64)})
    with pytest.raises(ReplayError, match="update of 'other' does not match"):
        store.update({"stepid": stepid, "other": np.zeros((2, 2))})
    with pytest.raises(ReplayError, match="consecutive steps of one stream"):
        store.update({"stepid": stepid[:, ::-1], "latent": np.zeros((2, 2, 2), np.float32)})


@pytest.mark.parametrize(("length", "capacity"), [(0, 1), (1, 0)])
def test_a_store_for_nothing_is_refused(length: int, capacity: int) -> None:
    with pytest.raises(ReplayError, match="positive length and capacity"):
        ReplayStore(length, capacity)


def test_a_store_continues_from_its_file_also_with_bfloat16(tmp_path) -> None:
    def add(store: ReplayStore, index: int) -> None:
        rows = make_rows([1, 2], [1000 + index, 2000 + index])
        rows["deter"] = np.array([[index], [-index]], ml_dtypes.bfloat16)
        store.add_batch(rows)

    def make() -> ReplayStore:
        return ReplayStore(length=3, capacity=8, chunksize=4, online=True)

    store = make()
    for index in range(9):
        add(store, index)
    store.sample(3, "train")
    save_arrays(tmp_path / "replay.safetensors", store.save())
    restored = make()
    restored.load(load_arrays(tmp_path / "replay.safetensors"))
    for index in range(9, 12):
        add(store, index)
        add(restored, index)
    assert len(restored) == len(store) == 8
    expected, found = store.save(), restored.save()
    assert found.keys() == expected.keys()
    for key in expected:
        assert found[key].dtype == expected[key].dtype
        np.testing.assert_array_equal(found[key], expected[key], key)
    assert found["1/steps/deter"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(restored.sample(2, "train")["stepid"], store.sample(2, "train")["stepid"])


def test_an_empty_store_can_be_saved_and_loaded(tmp_path) -> None:
    save_arrays(tmp_path / "replay.safetensors", ReplayStore(3, 8).save())
    restored = ReplayStore(3, 8)
    restored.load(load_arrays(tmp_path / "replay.safetensors"))
    assert len(restored) == 0
    fill(restored, 1, 3)
    assert len(restored) == 1
