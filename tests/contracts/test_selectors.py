"""Every selector, alone, mixed and through the store: what is drawn, and how often."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamfleet.core.errors import ReplayError
from dreamfleet.replay.selectors import Prioritized, Selector, make_selector
from dreamfleet.replay.store import ReplayStore
from dreamfleet.replay.sumtree import SumTree
from support.replays import chi_square_p, fill, make_rows, make_store

FIRST, END, CAPACITY = 37, 137, 110  # windows held, out of a capacity that they do not fill
DRAWS = 40_000
P_BOUND = 1e-3  # seeds are fixed: a draw by the right weights passes once and for all
WITHOUT_ZERO = {"exponent": 0.8, "maxfrac": 0.5, "initial": 1.0, "zero_on_sample": False}
PRIORITIES = np.random.default_rng(5).uniform(0.0, 3.0, END - FIRST)
AGES = np.arange(END - FIRST, 0, -1)
MIXTURES = [
    {"uniform": 1.0},
    {"priority": 1.0},
    {"recency": 1.0},
    {"uniform": 0.7, "recency": 0.3},
    {"uniform": 0.5, "priority": 0.5},
    {"priority": 2.0, "recency": 6.0},
    {"uniform": 0.5, "priority": 0.3, "recency": 0.2},
    {"uniform": 0.0, "priority": 1.0, "recency": 0.0},
]


def expected_weights(fracs: dict[str, float], exponent: float, weights: np.ndarray, held: int) -> np.ndarray:
    """By the definition: the mean of what each selector would do, by its share."""
    ages = np.arange(held, 0, -1, dtype=np.float64)
    parts = {"uniform": np.ones(held), "recency": 1 / ages**exponent, "priority": weights}
    return np.sum([share * parts[name] / parts[name].sum() for name, share in fracs.items()], axis=0)


def make(fracs: dict[str, float], recency: float = 1.0, **priority: Any) -> tuple[Selector, Prioritized | None]:
    return make_selector(fracs, CAPACITY, recency, {**WITHOUT_ZERO, **priority})


def count(windows: np.ndarray, held: int) -> np.ndarray:
    assert windows.min() >= 0
    assert windows.max() < held
    return np.bincount(windows, minlength=held)


@pytest.mark.parametrize("at_once", [1, 7, DRAWS])
@pytest.mark.parametrize("fracs", MIXTURES, ids=str)
def test_windows_are_drawn_as_often_as_their_weights_say(fracs: dict[str, float], at_once: int) -> None:
    selector, prioritized = make(fracs)
    if prioritized is not None:
        prioritized.set_weights(np.arange(FIRST), np.full(FIRST, 50.0))  # windows that are gone
        prioritized.remove(0, FIRST)
        prioritized.set_weights(np.arange(FIRST, END), PRIORITIES)
    rng = np.random.default_rng(1)
    draws = DRAWS if at_once > 1 else DRAWS // 4
    drawn = np.concatenate([selector.draw(rng, at_once, FIRST, END) for _ in range(-(-draws // at_once))])
    weights = expected_weights(fracs, 1.0, PRIORITIES, END - FIRST)
    assert chi_square_p(count(drawn - FIRST, END - FIRST), weights) > P_BOUND


@pytest.mark.parametrize("held", [1, 2, 100, 3000])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_recency_weighs_by_age_to_the_exponent_whatever_was_held_before(exponent: float, held: int) -> None:
    selector, _ = make({"recency": 1.0}, exponent)
    rng = np.random.default_rng(2)
    for other in (1, 2000, 5):
        selector.draw(rng, 10, 0, other)
    drawn = selector.draw(rng, 10 * DRAWS, FIRST, FIRST + held) - FIRST
    counts = count(drawn, held)
    if held > 1:
        assert chi_square_p(counts, 1 / np.arange(held, 0, -1.0) ** exponent) > P_BOUND


def test_chi_square_notices_weights_that_are_a_little_wrong() -> None:
    """The check itself: recency with an exponent of 1 must not pass for one of 0.95, nor for uniform."""
    selector, _ = make({"recency": 1.0})
    counts = count(selector.draw(np.random.default_rng(3), DRAWS, FIRST, END) - FIRST, END - FIRST)
    assert chi_square_p(counts, 1 / AGES**0.95) < 1e-4
    assert chi_square_p(counts, np.ones(END - FIRST)) < 1e-9


@pytest.mark.parametrize("maxfrac", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("exponent", [0.5, 0.8, 1.0])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 8])
def test_a_window_weighs_as_the_maximum_and_mean_of_its_steps(maxfrac: float, exponent: float, length: int) -> None:
    """Of those that a priority is known of: infinite ones count only where there are no others."""
    _, prioritized = make({"priority": 1.0}, maxfrac=maxfrac, exponent=exponent)
    steps = np.random.default_rng(0).uniform(0, 4, (5, 8)).astype(np.float32)
    steps[1] = 0.0
    steps[2] = np.inf
    steps[3, 2:7] = np.inf
    expected = np.empty((5, 8 - length + 1))
    for row, begin in np.ndindex(expected.shape):
        known = [priority**exponent for priority in steps[row, begin : begin + length].tolist() if priority < np.inf]
        weight = maxfrac * max(known) + (1 - maxfrac) * sum(known) / len(known) if known else np.inf
        expected[row, begin] = weight
    assert prioritized is not None
    np.testing.assert_allclose(prioritized.weigh(steps, length), expected, rtol=1e-6)


def test_infinite_weights_are_drawn_first_and_alike() -> None:
    selector, prioritized = make({"priority": 1.0})
    assert prioritized is not None
    weights = PRIORITIES.copy()
    weights[[3, 50, 99]] = np.inf
    prioritized.set_weights(np.arange(FIRST, END), weights)
    rng = np.random.default_rng(4)
    drawn = selector.draw(rng, 3000, FIRST, END) - FIRST
    assert set(drawn.tolist()) == {3, 50, 99}
    assert chi_square_p(count(drawn, END - FIRST)[[3, 50, 99]], [1, 1, 1]) > P_BOUND
    prioritized.set_weights(np.array([3, 50, 99]) + FIRST, np.array([0.0, 2.0, 2.0]))
    finite = np.where(np.isinf(weights), [0.0 if i == 3 else 2.0 for i in range(END - FIRST)], weights)
    drawn = selector.draw(rng, DRAWS, FIRST, END) - FIRST
    assert chi_square_p(count(drawn, END - FIRST), finite) > P_BOUND


def test_when_nothing_has_a_weight_all_windows_are_alike() -> None:
    selector, _ = make({"priority": 1.0})
    drawn = selector.draw(np.random.default_rng(5), DRAWS, FIRST, END) - FIRST
    assert chi_square_p(count(drawn, END - FIRST), np.ones(END - FIRST)) > P_BOUND


@pytest.mark.parametrize("fracs", [{}, {"uniform": 0.0}, {"newest": 1.0}], ids=str)
def test_shares_that_name_no_selector_are_refused(fracs: dict[str, float]) -> None:
    with pytest.raises(ReplayError, match="uniform, priority or recency"):
        make(fracs)


# Through the store: windows of 3 steps, of which the oldest were evicted, over chunks of 4 steps of two streams.

LENGTH, HELD = 3, 60


def filled_store(**options: Any) -> ReplayStore:
    store = make_store(LENGTH, HELD, chunksize=4, **options)
    for index in range(45):
        store.add_batch(make_rows([1, 2], [1000 + index, 2000 + index]))
    return store


def places(store: ReplayStore) -> dict[tuple[int, int], int]:
    """The windows by their order: both streams grew in step, and of 43 windows each, the last 30 are left."""
    windows = [(stream, start) for start in range(13, 43) for stream in (1, 2)]
    assert len(store) == len(windows) == HELD
    return {window: place for place, window in enumerate(windows)}


def draw_counts(store: ReplayStore, draws: int, at_once: int = 500) -> np.ndarray:
    number = places(store)
    counts = np.zeros(HELD)
    for _ in range(draws // at_once):
        for stream, start in store.sample(at_once, "report")["stepid"][:, 0].tolist():
            counts[number[stream, start]] += 1
    return counts


def give_priorities(store: ReplayStore, of: Callable[[int, int], float]) -> np.ndarray:
    """Writes a priority to every step; returns the weights of windows that follow from it."""
    stepid = np.array([[[stream, t] for t in range(13, 45)] for stream in (1, 2)])
    priority = np.array([[of(stream, t) for stream, t in row] for row in stepid.tolist()], np.float32)
    assert store.update({"stepid": stepid, "priority": priority}) == 0
    powers = priority.astype(np.float64) ** 0.8
    weights = []
    for stream, start in places(store):
        window = powers[stream - 1, start - 13 : start - 13 + LENGTH]
        weights.append(0.5 * window.max() + 0.5 * window.mean())
    return np.array(weights)


@pytest.mark.parametrize(
    ("fracs", "exponent"),
    [
        (fracs, exponent)
        for fracs in MIXTURES
        for exponent in (0.5, 1.0, 2.0)
        if exponent == 1.0 or fracs.get("recency")
    ],
    ids=str,
)
def test_the_store_draws_as_its_selectors_should(fracs: dict[str, float], exponent: float) -> None:
    store = filled_store(fracs=fracs, recency_exponent=exponent, priority=WITHOUT_ZERO, seed=7)
    weights = give_priorities(store, lambda stream, t: stream * (t % 7) / 3)
    shares = {name: share for name, share in fracs.items() if share}
    assert chi_square_p(draw_counts(store, DRAWS), expected_weights(shares, exponent, weights, HELD)) > P_BOUND


def test_the_store_forgets_the_weights_of_evicted_windows() -> None:
    store = filled_store(fracs={"priority": 1.0}, priority=WITHOUT_ZERO)
    give_priorities(store, lambda stream, t: 100.0 if t < 30 else 0.0)
    for index in range(45, 65):  # the windows from 30 to 42 keep a weight of zero, those after 42 begin with one
        store.add_batch(make_rows([1, 2], [1000 + index, 2000 + index]))
    starts = store.sample(2000, "report")["stepid"][:, 0, 1]
    assert starts.min() > 42 - LENGTH
    assert set(starts.tolist()) >= set(range(45, 63))


@pytest.mark.parametrize("fracs", MIXTURES, ids=str)
def test_reports_change_nothing_that_is_trained_on(fracs: dict[str, float]) -> None:
    without, reported = (make_store(2, 50, chunksize=4, online=True, fracs=fracs) for _ in range(2))
    drawn = []
    for index in range(60):
        for store in (without, reported):
            store.add_batch(make_rows([1], [1000 + index]))
        if index > 10:
            drawn += [reported.sample(3, "report")["stepid"][:, 0, 1].tolist() for _ in range(index % 4)]
            batches = [store.sample(3, "train") for store in (without, reported)]
            np.testing.assert_array_equal(batches[0]["stepid"], batches[1]["stepid"])
            for store in (without, reported):
                priority = (batches[0]["value"] % 3).astype(np.float32)
                store.update({"stepid": batches[0]["stepid"], "priority": priority})
    assert len({str(windows) for windows in drawn}) > len(drawn) / 2, "reports show other windows every time"


def test_every_new_window_is_drawn_before_one_is_drawn_again() -> None:
    """With an infinite initial priority that sampling takes away, as by default."""
    store = make_store(1, 50, chunksize=4, fracs={"priority": 1.0})
    fill(store, 1, 20)
    assert sorted(store.sample(20, "train")["value"][:, 0].tolist()) == list(range(1000, 1020))
    fill(store, 1, 5, start=20)
    assert sorted(store.sample(5, "train")["value"][:, 0].tolist()) == list(range(1020, 1025))
    counts = np.bincount(store.sample(10_000, "train")["value"][:, 0] - 1000, minlength=25)  # nothing has a weight
    assert chi_square_p(counts, np.ones(25)) > P_BOUND


def test_a_sampled_window_comes_back_when_its_priority_is_written() -> None:
    store = make_store(2, 50, chunksize=4, fracs={"priority": 1.0})
    fill(store, 1, 11)
    batch = store.sample(40, "train")
    assert set(batch["stepid"][:, 0, 1].tolist()) == set(range(10))
    store.update({"stepid": np.array([[[1, 5]]]), "priority": np.ones((1, 1), np.float32)})
    assert set(store.sample(1, "train")["stepid"][:, 0, 1].tolist()) <= {4, 5}  # the windows with step 5 in them


def test_zero_on_sample_draws_without_replacement_by_the_weights_that_are_left() -> None:
    """Two draws at once of three windows with weights 4, 2, 1: worked out by hand, first times second."""
    pairs = {
        (a, b): wa / 7 * wb / (7 - wa) for a, wa in enumerate((4, 2, 1)) for b, wb in enumerate((4, 2, 1)) if a != b
    }
    store = make_store(
        1, 50, fracs={"priority": 1.0}, priority={**WITHOUT_ZERO, "exponent": 1.0, "zero_on_sample": True}
    )
    fill(store, 1, 3)
    counts = dict.fromkeys(pairs, 0)
    for _ in range(4000):
        store.update({"stepid": np.array([[[1, 0], [1, 1], [1, 2]]]), "priority": np.array([[4, 2, 1]], np.float32)})
        counts[tuple((store.sample(2, "train")["value"][:, 0] - 1000).tolist())] += 1
    assert chi_square_p(list(counts.values()), list(pairs.values())) > P_BOUND


def test_in_a_mixture_only_what_priority_drew_loses_its_weight() -> None:
    options = {"fracs": {"uniform": 0.5, "priority": 0.5}, "priority": {**WITHOUT_ZERO, "zero_on_sample": True}}
    store = make_store(1, 100, **options)
    fill(store, 1, 60)
    assert store._prioritized is not None
    store.sample(60, "train")
    zeros = int((store._prioritized._tree.get(np.arange(60)) == 0).sum())
    assert 18 <= zeros <= 42  # about half of 60 draws, and no window twice


# The sum tree alone, against a plain array.


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 70), data=st.data())
def test_a_sum_tree_holds_what_was_set_and_draws_by_it(size: int, data: st.DataObject) -> None:
    tree, plain = SumTree(size), np.zeros(size)
    weights = st.one_of(st.floats(0, 100), st.just(0.0), st.just(float("inf")))
    for _ in range(data.draw(st.integers(1, 5))):
        entries = data.draw(st.lists(st.tuples(st.integers(0, size - 1), weights), min_size=1, max_size=20))
        tree.set(np.array([place for place, _ in entries]), np.array([weight for _, weight in entries]))
        for place, weight in entries:
            plain[place] = weight
    np.testing.assert_array_equal(tree.get(np.arange(size)), plain)
    assert tree.total == pytest.approx(plain.sum())
    if plain.sum() > 0:
        drawn = tree.draw(np.random.default_rng(0), 200)
        assert (np.isinf(plain[drawn]) if np.isinf(plain).any() else plain[drawn] > 0).all()


class Given:
    """A generator whose next numbers are known."""

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers = numbers

    def random(self, count: int) -> np.ndarray:
        assert count == len(self._numbers)
        return self._numbers


@pytest.mark.parametrize("size", [1, 2, 5, 64, 65])
def test_a_sum_tree_cuts_the_line_where_the_running_sums_are(size: int) -> None:
    weights = np.random.default_rng(6).integers(0, 4, size).astype(np.float64)
    weights[-1] = 1.0
    tree = SumTree(size)
    tree.set(np.arange(size), weights)
    edges = np.concatenate([[0], np.cumsum(weights)])
    middles = [(place, (low + high) / 2) for place, (low, high) in enumerate(pairwise(edges)) if high > low]
    numbers = np.array([middle for _, middle in middles]) / edges[-1]
    assert tree.draw(Given(numbers), len(numbers)).tolist() == [place for place, _ in middles]  # type: ignore[arg-type]
    last = tree.draw(Given(np.array([np.nextafter(1.0, 0.0)])), 1)  # type: ignore[arg-type]
    assert last.tolist() == [size - 1]
