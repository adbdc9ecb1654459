"""The store's promises about windows, updates, the online queue and what it refuses, one by one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays
from support.replays import BFLOAT16, fill, make_rows, make_store, windows_of


def test_a_window_is_available_from_the_step_that_completes_it() -> None:
    store = make_store(3, 10)
    with pytest.raises(ReplayError, match="no window of 3 steps"):
        store.sample(1, "train")
    fill(store, 1, 2)
    with pytest.raises(ReplayError, match="no window of 3 steps"):
        store.sample(1, "train")
    fill(store, 1, 1, start=2)
    assert len(store) == 1
    assert store.sample(1, "train")["value"].tolist() == [[1000, 1001, 1002]]


def test_many_short_streams_make_no_window() -> None:
    store = make_store(3, 10, chunksize=4)
    for stream in range(200):
        fill(store, stream, 2)
    assert len(store) == 0


def test_streams_that_ended_give_their_chunks_back() -> None:
    store = make_store(3, 10, chunksize=4)
    for stream in range(2000):
        fill(store, stream, 2)
    assert store.stats()["chunks"] <= 8


def test_several_steps_of_a_stream_in_one_batch_follow_each_other() -> None:
    store = make_store(2, 50, chunksize=3)
    store.add_batch(make_rows([1, 2, 1, 1, 2], [10, 20, 11, 12, 21]))
    assert windows_of(store) == [(1, 0), (2, 0), (1, 1)]
    values = {tuple(row) for row in store.sample(50, "report")["value"].tolist()}
    assert values == {(10, 11), (20, 21), (11, 12)}


def test_any_dtype_comes_back_as_it_was() -> None:
    rng = np.random.default_rng(0)
    names = ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "uint64", "float16", "float32", "float64"]
    dtypes = [*(np.dtype(name) for name in names), BFLOAT16, np.dtype(ml_dtypes.float8_e4m3fn)]
    store = make_store(3, 10)
    rows = make_rows([1] * 3, [0, 1, 2])
    rows |= {f"k{i}": rng.integers(0, 2, (3, 2, 3)).astype(dtype) for i, dtype in enumerate(dtypes)}
    rows["nothing"] = np.zeros((3, 0), np.float32)
    store.add_batch(rows)
    batch = store.sample(2, "train")
    for key in [key for key in rows if key.startswith("k")]:
        assert batch[key].dtype == rows[key].dtype
        np.testing.assert_array_equal(batch[key], np.stack([rows[key]] * 2), key)
    assert batch["nothing"].shape == (2, 3, 0)


@pytest.mark.parametrize("context", [0, 1, 3])
def test_latents_come_for_the_context_alone(context: int) -> None:
    store = make_store(5, 10, context=context)
    fill(store, 1, 5)
    batch = store.sample(2, "train")
    if context:
        assert batch["dyn/deter"].tolist() == [[[1000 + t, -1000 - t] for t in range(context)]] * 2
        assert batch["dyn/stoch"].dtype == BFLOAT16
    else:
        assert "dyn/deter" not in batch
    assert batch["image"].shape == (2, 5, 40, 30)


def test_online_serves_each_stretch_of_a_stream_exactly_once_and_in_order() -> None:
    for fracs in ({"uniform": 1.0}, {"uniform": 0.4, "priority": 0.3, "recency": 0.3}):
        store = make_store(4, 1000, chunksize=5, online=True, fracs=fracs)
        served = []
        for index in range(40):
            store.add_batch(make_rows([1, 2], [1000 + index, 2000 + index]))
            if index % 8 == 7:
                store.sample(3, "report")
                served += store.sample(4, "train")["value"].tolist()
        for stream in (1, 2):
            values = [value for window in served for value in window if value // 1000 == stream]
            assert values == list(range(1000 * stream, 1000 * stream + 40))


def test_online_windows_are_served_before_others_fill_the_batch() -> None:
    store = make_store(2, 1000, online=True, fracs={"recency": 0.5, "priority": 0.5})
    fill(store, 1, 6)
    batch = store.sample(20, "train")["value"]
    assert batch[:3].tolist() == [[1000, 1001], [1002, 1003], [1004, 1005]]
    assert len(batch) == 20


def test_reports_leave_the_online_windows_to_training() -> None:
    store = make_store(2, 100, online=True)
    fill(store, 1, 6)
    store.sample(50, "report")
    assert store.sample(3, "train")["value"].tolist() == [[1000, 1001], [1002, 1003], [1004, 1005]]


def test_online_skips_windows_that_were_evicted_and_does_not_remember_them() -> None:
    store = make_store(2, 2, online=True)
    fill(store, 1, 207)  # windows from 204 and 205 are left
    assert len(store._fresh) == 1
    assert store.sample(1, "train")["value"].tolist() == [[1204, 1205]]


def test_marks_borders_of_the_window_and_of_abandoned_episodes() -> None:
    store = make_store(5, 10)
    firsts = [False, False, True, False, True]
    lasts = [False, False, False, True, False]
    store.add_batch(make_rows([0] * 5, [0, 1, 2, 3, 4], firsts, lasts))
    batch = store.sample(1, "train")
    assert batch["is_first"].tolist() == [[True, False, True, False, True]]
    assert batch["is_last"].tolist() == [[False, True, False, True, False]]


def test_marking_a_window_leaves_the_stored_steps_alone() -> None:
    store = make_store(2, 10)
    fill(store, 0, 3)
    for _ in range(20):
        batch = store.sample(1, "train")
        assert batch["is_first"].tolist() == [[True, False]]
        assert batch["is_last"].tolist() == [[False, False]]


def test_the_oldest_windows_go_first_and_take_their_chunks_along() -> None:
    store = make_store(3, 2, chunksize=4)
    fill(store, 1, 20)  # windows from 16 and 17 are left: one chunk of four steps
    assert windows_of(store) == [(1, 16), (1, 17)]
    assert store.stats()["chunks"] == 1
    assert store.stats()["streams"] == 1


def test_a_forgotten_stream_that_goes_on_names_no_step_twice() -> None:
    store = make_store(2, 2, chunksize=2, context=2)
    fill(store, 1, 2)
    old = store.sample(1, "train")["stepid"]
    fill(store, 2, 10)
    assert store.stats()["streams"] == 1
    fill(store, 1, 2, start=2)
    latents = {"dyn/deter": np.zeros((1, 2, 2), np.float32), "dyn/stoch": np.zeros((1, 2, 1), BFLOAT16)}
    assert store.update({"stepid": old, **latents}) == 2
    assert (1, 2) in windows_of(store)
    assert (store.sample(50, "report")["dyn/deter"] != 0).all()


def test_update_writes_where_the_step_is_sampled_again_and_counts_what_is_gone() -> None:
    store = make_store(3, 2, chunksize=2, context=3)
    fill(store, 1, 3)
    batch = store.sample(1, "train")
    fill(store, 1, 2, start=3)  # windows from 1 and 2 are left, step 0 is gone
    latent = np.arange(6, dtype=np.float32).reshape(1, 3, 2)
    assert store.update({"stepid": batch["stepid"], "dyn/deter": latent}) == 1
    assert store.stats()["updates"] == 2
    assert store.stats()["updates_missed"] == 1
    rows = store.sample(50, "train")
    found = {value: rows["dyn/deter"][rows["value"] == value][0].tolist() for value in range(1001, 1005)}
    assert found == {1001: [2, 3], 1002: [4, 5], 1003: [1003, -1003], 1004: [1004, -1004]}


def test_an_update_of_a_replay_that_began_anew_finds_nothing() -> None:
    store = make_store(4, 10)
    stepid = np.array([[[1, 0], [1, 1]]])
    assert store.update({"stepid": stepid, "dyn/deter": np.zeros((1, 2, 2), np.float32)}) == 2
    assert store.stats()["updates_missed"] == 2


def test_update_of_an_unknown_stream_or_of_steps_to_come_changes_nothing() -> None:
    store = make_store(2, 10, chunksize=4, context=2)
    fill(store, 1, 2)
    stepid = np.array([[[9, 0], [9, 1]], [[1, 1], [1, 2]], [[1, 50], [1, 51]]])
    ones = np.ones((3, 2, 2), np.float32)
    assert store.update({"stepid": stepid, "dyn/deter": ones, "priority": ones[..., 0]}) == 5
    fill(store, 1, 1, start=2)
    found = store.sample(50, "train")
    assert {tuple(latent) for latent in found["dyn/deter"][:, -1].tolist()} == {(1.0, 1.0), (1002.0, -1002.0)}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"value": np.zeros(1, np.int32)}, "int32"),
        ({"dyn/deter": np.zeros((1, 3), np.float32)}, "dyn/deter"),
        ({"dyn/deter": np.zeros((1, 2), BFLOAT16)}, "bfloat16"),
        ({"extra": np.zeros(1)}, "extra"),
        ({"image": None}, "image"),
    ],
    ids=["dtype", "shape", "bfloat16", "more keys", "fewer keys"],
)
def test_a_step_that_looks_different_from_the_first_is_refused(change: Arrays, named: str) -> None:
    store = make_store(2, 10)
    fill(store, 1, 1)
    rows = {key: value for key, value in {**make_rows([1], [1]), **change}.items() if value is not None}
    with pytest.raises(ReplayError, match=f"differ from the first step's.*{named}"):
        store.add_batch(rows)
    fill(store, 1, 1, start=1)
    assert store.sample(1, "train")["value"].tolist() == [[1000, 1001]]
    assert store.stats()["inserts"] == 2


def test_the_order_of_keys_does_not_matter() -> None:
    store = make_store(2, 10)
    fill(store, 1, 1)
    store.add_batch(dict(reversed(make_rows([1], [1001]).items())))
    batch = store.sample(1, "train")
    assert batch["value"].tolist() == [[1000, 1001]]
    assert batch["image"][0, :, 0, 0].tolist() == [1000 % 251, 1001 % 251]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("at", [(0, 0), (1, 2)])
def test_nan_is_refused_and_infinity_is_not(dtype: str, at: tuple[int, int]) -> None:
    store = make_store(1, 10)
    rows = make_rows([1, 2], [0, 1])
    rows["reading"] = np.array([[1.0, -np.inf, 3.0], [np.inf, 0.0, -1.0]]).astype(
        BFLOAT16 if dtype == "bfloat16" else dtype
    )
    store.add_batch(rows)
    for bad in (np.nan, -np.nan):
        rows["reading"][at] = bad
        with pytest.raises(ReplayError, match="NaN under 'reading': look at the environment or agent"):
            store.add_batch(rows)
    assert store.stats()["inserts"] == 2
    assert len(store) == 2


def test_updates_that_do_not_match_what_is_stored_are_refused() -> None:
    store = make_store(2, 10)
    fill(store, 1, 4)
    stepid = store.sample(2, "train")["stepid"]
    with pytest.raises(ReplayError, match="update of 'dyn/deter' does not match"):
        store.update({"stepid": stepid, "dyn/deter": np.zeros((2, 2, 2), np.float64)})
    with pytest.raises(ReplayError, match="update of 'dyn/deter' does not match"):
        store.update({"stepid": stepid, "dyn/deter": np.zeros((1, 2, 2), np.float32)})
    with pytest.raises(ReplayError, match="update of 'dyn/other'"):
        store.update({"stepid": stepid, "dyn/other": np.zeros((2, 2))})
    with pytest.raises(ReplayError, match="update of 'value': only latents may change"):
        store.update({"stepid": stepid, "value": np.zeros((2, 2), np.int64)})
    with pytest.raises(ReplayError, match="consecutive steps of one stream"):
        store.update({"stepid": stepid[:, ::-1], "dyn/deter": np.zeros((2, 2, 2), np.float32)})
    with pytest.raises(ReplayError, match="stepid of shape"):
        store.update({"stepid": stepid[0], "dyn/deter": np.zeros((2, 2), np.float32)})
    assert store.stats()["updates"] == 0


@pytest.mark.parametrize(("length", "capacity"), [(0, 1), (1, 0), (-1, 5)])
def test_a_store_for_nothing_is_refused(length: int, capacity: int) -> None:
    with pytest.raises(ReplayError, match="positive length and capacity"):
        make_store(length, capacity)


def test_a_capacity_smaller_than_one_batch_is_refused_with_the_key_to_change() -> None:
    store = make_store(1, 3)
    with pytest.raises(ReplayError, match=r"replay\.size=3"):
        store.add_batch(make_rows([1, 2, 3, 4], [0, 0, 0, 0]))
    store.add_batch(make_rows([1, 2, 3], [0, 1, 2]))
    store.add_batch(make_rows([1, 2, 3], [3, 4, 5]))
    assert windows_of(store) == [(1, 1), (2, 1), (3, 1)]


def test_rows_that_do_not_match_the_streams_are_refused() -> None:
    store = make_store(1, 10)
    rows = make_rows([1, 2], [7, 8])
    with pytest.raises(ReplayError, match="'value' has 1 rows for 2 streams"):
        store.add_batch({**rows, "value": rows["value"][:1]})
    store.add_batch(rows)
    assert sorted(store.sample(50, "report")["value"][:, 0].tolist())[::49] == [7, 8]


def test_an_empty_batch_changes_nothing() -> None:
    store = make_store(1, 10)
    store.add_batch(make_rows([1], [7]))
    store.add_batch({key: value[:0] for key, value in make_rows([1], [7]).items()})
    assert store.stats()["inserts"] == 1
    assert len(store) == 1


@pytest.mark.parametrize("zero_on_sample", [False, True])
@pytest.mark.parametrize("fracs", [{"uniform": 1.0}, {"recency": 1.0}, {"priority": 1.0}], ids=str)
def test_online_windows_may_fill_the_whole_batch(fracs: dict[str, float], zero_on_sample: bool) -> None:
    """Nothing is left for the selector to draw."""
    priority = {"exponent": 0.8, "maxfrac": 0.5, "initial": 1.0, "zero_on_sample": zero_on_sample}
    store = make_store(2, 10, online=True, fracs=fracs, priority=priority)
    fill(store, 1, 4)
    assert store.sample(2, "train")["value"].tolist() == [[1000, 1001], [1002, 1003]]
