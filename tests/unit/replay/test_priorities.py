"""What is drawn by priority over the course of a run, and what it costs to keep the weights."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import numpy as np
import pytest

from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.store import ReplayStore
from support.replays import chi_square_p, make_store, windows_of

BATCH, LENGTH, LATE = 16, 64, 5  # windows; steps trained on; batches that are on their way when one is drawn


class Fleet:
    """Inserts, samples and updates as of a run with the default train ratio: a batch for every 32 steps."""

    def __init__(self, streams: int, losses: np.ndarray | None, **options: object) -> None:
        self.streams = streams
        self.losses = losses  # of a step, by its index modulo their number; None: nobody writes priorities
        self.store: ReplayStore = make_store(LENGTH + 1, 100_000, context=1, fracs={"priority": 1.0}, **options)
        self.index = 0
        self.on_their_way: deque[Arrays] = deque()

    def insert(self, steps: int) -> None:
        flags = {key: np.zeros(self.streams, bool) for key in ("is_first", "is_last")}
        for _ in range(steps // self.streams):
            self.store.add_batch({"stream": np.arange(self.streams), "dyn/z": np.zeros((self.streams, 1)), **flags})
            self.index += 1

    def train(self, updates: int) -> np.ndarray:
        """Inserts and updates; returns how old the windows were that were drawn: 0 the newest, 1 the oldest."""
        ages = []
        for _ in range(updates):
            self.insert(32)
            windows = self.index - LENGTH  # of each stream
            stepid = self.store.sample(BATCH, "train")["stepid"]
            ages += ((windows - 1 - stepid[:, 0, 1]) / windows).tolist()
            self.on_their_way.append({"stepid": stepid[:, 1:]})
            if self.losses is not None and len(self.on_their_way) > LATE:
                update = self.on_their_way.popleft()
                priority = self.losses[update["stepid"][..., 1] % len(self.losses)]
                self.store.update({**update, "priority": priority})
        return np.array(ages)


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("streams", [1, 4, 16])
def test_old_windows_are_drawn_as_often_as_new_ones_where_their_losses_are_alike(streams: int, online: bool) -> None:
    fleet = Fleet(streams, np.full(7, 3.0, np.float32), online=online)
    fleet.insert(3200)
    fleet.train(30)  # until every window was new once
    ages = fleet.train(80)
    np.testing.assert_allclose(np.quantile(ages, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.1)
    # One window of each stretch is drawn because it is new, a second time by the online queue.
    assert (ages < 0.02).mean() < 0.1


def test_windows_with_larger_losses_are_drawn_more_often() -> None:
    """Steps come in stretches of 300, of which every other one has a loss of 16 instead of 1: 16 ** 0.8 is 9.2."""
    losses = np.repeat(np.array([1.0, 16.0], np.float32), 300)
    fleet = Fleet(1, losses, online=False)
    fleet.insert(3200)
    fleet.train(60)
    store = fleet.store
    drawn = store.sample(4000, "report")["stepid"][:, 0, 1]
    within = (drawn % 300 > 0) & (drawn % 300 < 300 - LENGTH)  # all steps of a window have the same loss
    large = drawn[within] % 600 >= 300
    assert large.mean() == pytest.approx(16**0.8 / (1 + 16**0.8), abs=0.06)


def test_a_step_that_was_never_trained_on_does_not_make_its_window_come_first() -> None:
    """Only a window none of whose steps was trained on does."""
    store = make_store(3, 50, chunksize=4, fracs={"priority": 1.0})
    flags = {key: np.zeros(1, bool) for key in ("is_first", "is_last")}

    def insert(steps: int) -> None:
        for _ in range(steps):
            store.add_batch({"stream": np.array([1]), **flags})

    def starts(count: int) -> set[int]:
        return set(store.sample(count, "report")["stepid"][:, 0, 1].tolist())

    insert(9)
    stepid = np.array([[[1, t] for t in range(9)]])
    store.update({"stepid": stepid, "priority": np.ones((1, 9), np.float32)})
    insert(2)
    assert starts(400) == set(range(9)), "windows 7 and 8 have steps with a priority"
    insert(1)
    assert starts(50) == {9}
    assert store.sample(1, "train")["stepid"][0, 0, 1] == 9
    assert starts(400) <= set(range(9))


def test_windows_that_share_steps_are_drawn_as_if_one_came_after_the_other() -> None:
    """Two draws at once of windows of two steps: worked out from the weights that the first one leaves."""
    priority = {"exponent": 1.0, "maxfrac": 0.25, "initial": float("inf"), "zero_on_sample": True}
    store = make_store(2, 50, chunksize=4, fracs={"priority": 1.0}, priority=priority)
    flags = {key: np.zeros(1, bool) for key in ("is_first", "is_last")}
    for _ in range(5):
        store.add_batch({"stream": np.array([1]), **flags})
    losses = [5.0, 1.0, 2.0, 8.0, 3.0]

    def weights(steps: list[float]) -> np.ndarray:
        return np.array([0.25 * max(a, b) + 0.75 * (a + b) / 2 for a, b in pairwise(steps)])

    pairs = {}
    for first, weight in enumerate(weights(losses)):
        left = weights([0.0 if step in (first, first + 1) else loss for step, loss in enumerate(losses)])
        for second in np.flatnonzero(left):
            pairs[first, int(second)] = weight / weights(losses).sum() * left[second] / left.sum()
    counts = dict.fromkeys(pairs, 0)
    stepid = np.array([[[1, t] for t in range(5)]])
    for _ in range(3000):
        store.update({"stepid": stepid, "priority": np.array([losses], np.float32)})
        counts[tuple(store.sample(2, "train")["stepid"][:, 0, 1].tolist())] += 1
    assert chi_square_p(list(counts.values()), list(pairs.values())) > 1e-3


def test_weights_follow_from_the_priorities_of_steps_whatever_happens_to_windows() -> None:
    """Against a slow loop over all windows held, while old ones go, their places are used again and streams end."""
    rng, flags = np.random.default_rng(2), {"is_first": np.zeros(1, bool), "is_last": np.zeros(1, bool)}
    store = make_store(3, 40, chunksize=4, fracs={"priority": 1.0})  # the options are those by default
    steps: dict[tuple[int, int], float] = {}
    counts = {0: 0, 1: 0, 2: 0}  # steps of the streams that go on

    def weight(stream: int, start: int) -> float:
        known = [steps[stream, start + t] ** 0.8 for t in range(3) if steps[stream, start + t] < np.inf]
        return 0.5 * max(known) + 0.5 * sum(known) / len(known) if known else np.inf

    for _ in range(400):
        what, stream = rng.integers(0, 4), int(rng.choice(list(counts)))
        if what < 2:
            store.add_batch({"stream": np.array([stream]), **flags})
            steps[stream, counts[stream]] = np.inf
            counts[stream] += 1
            if rng.random() < 0.02:
                counts[max(counts) + 1] = 0
                del counts[stream]
        elif what == 2 and len(store):
            weighted = any(weight(*window) > 0 for window in windows_of(store))
            (drawn,) = store.sample(1, "train")["stepid"].tolist()
            steps.update({(row[0], row[1]): 0.0 for row in drawn if weighted})
        elif len(store):
            (drawn,) = store.sample(1, "report")["stepid"]
            priority = rng.integers(0, 5, 3)
            store.update({"stepid": drawn[None], "priority": priority[None].astype(np.float32)})
            steps.update({(a, b): float(p) for (a, b), p in zip(drawn.tolist(), priority.tolist(), strict=True)})
        held = windows_of(store)
        if held and rng.random() < 0.3:
            store.sample(1, "report")  # weighs new windows
            assert store._prioritized is not None
            found = store._prioritized._tree.get(np.arange(store._first, store._end) % 41)
            np.testing.assert_allclose(found, [weight(*window) for window in held], rtol=1e-6)
            assert np.isinf(found).any() or store._prioritized._tree.total == pytest.approx(found.sum())
    assert store._first > 100
