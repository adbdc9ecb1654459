"""The priorities of an update, on their way to a replay that draws by them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dreamfleet.agent.dreamer import DreamerAgent
from dreamfleet.replay.store import ReplayOptions, ReplayStore
from support.tiny_dreamer import CHOICE, VECTOR, make_data, tiny_options

ROWS, STEPS = 2, 4  # of the batches that the agent is compiled for


def filled_store() -> ReplayStore:
    priority = {"exponent": 1.0, "maxfrac": 1.0, "initial": float("inf"), "zero_on_sample": True}
    store = ReplayStore(ReplayOptions(STEPS + 1, 100, context=1, fracs={"priority": 1.0}, priority=priority))
    data = make_data(tiny_options(), VECTOR, CHOICE, 3, 11, context=11)
    for step in range(11):
        keys = data.keys() - {"consec", "stepid"}
        store.add_batch({"stream": np.arange(3), **{key: data[key][:, step] for key in keys}})
    return store


def weight_of(store: ReplayStore, stream: int, start: int) -> float:
    assert store._prioritized is not None
    begins = store._begins[store._first : store._end]
    assert store._memory is not None
    chunks = begins // store._memory.chunksize
    owners = store._memory.table.owner[chunks]
    starts = store._memory.table.start[chunks] + begins % store._memory.chunksize
    (window,) = np.flatnonzero((store._memory.streams.ids[owners] == stream) & (starts == start))
    return float(store._prioritized._tree.get(np.array([window]))[0])


def test_what_an_update_returns_gives_the_windows_trained_on_their_weights(agent: DreamerAgent) -> None:
    store = filled_store()
    batch = store.sample(ROWS, "train")
    carry = agent.init_train(ROWS)
    agent.take_held_back()  # of a test before
    _, _, metrics = agent.train(carry, {**batch, "consec": np.zeros(ROWS, np.int32)})
    outs: dict[str, Any] = agent.take_held_back()
    priority = outs["priority"]
    assert (priority.shape, priority.dtype) == ((ROWS, STEPS), np.float32)
    np.testing.assert_array_equal(outs["stepid"], batch["stepid"][:, 1:])
    mean = sum(metrics[f"loss/{name}"] for name in ("dyn", "rep", "rec/position"))
    np.testing.assert_allclose(priority.mean(), mean, rtol=1e-5)
    places = batch["stepid"][:, 0].tolist()
    assert [weight_of(store, *place) for place in places] == [0, 0], "what was sampled lost its priority"
    assert store.update(outs) == 0
    for row, place in enumerate(places):
        assert weight_of(store, *place) == priority[row].max()
