from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from dreamfleet.roles import tree


class Carry(NamedTuple):
    deter: object
    stoch: object


def test_map_keeps_the_structure():
    nested = {"a": [1, (2, 3)], "b": Carry(4, {"c": 5})}
    assert tree.map(lambda x: 10 * x, nested) == {"a": [10, (20, 30)], "b": Carry(40, {"c": 50})}
    assert isinstance(tree.map(lambda x: x, nested)["b"], Carry)


def test_map_over_several_trees_pairs_leaves_by_key_not_by_order():
    assert tree.map(lambda x, y: x - y, {"a": 5, "b": 7}, {"b": 1, "a": 2}) == {"a": 3, "b": 6}


def test_map_passes_a_bare_leaf_to_the_function():
    assert tree.map(lambda x, y: x + y, 1, 2) == 3


def test_map_takes_arrays_and_none_as_leaves():
    mapped = tree.map(lambda x: x is None, {"a": np.zeros(3), "b": None})
    assert mapped == {"a": False, "b": True}


@pytest.mark.parametrize(
    ("first", "second", "where"),
    [
        ({"a": 1}, {"b": 1}, "'/'"),
        ({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}}, "'a'"),
        ({"a": [1, {"b": 2}]}, {"a": [1, 2]}, "'a/1'"),
        ({"a": {}}, {"a": 1}, "'a'"),
        ([1, 2], [1], "'/'"),
    ],
)
def test_map_names_the_place_where_trees_differ(first, second, where):
    with pytest.raises(ValueError, match=f"trees differ at {where}"):
        tree.map(lambda x, y: x, first, second)


def test_leaves_come_in_order():
    assert tree.leaves({"b": [1, 2], "a": (3, {"c": 4})}) == [1, 2, 3, 4]


def test_leaves_of_a_leaf_is_itself():
    assert tree.leaves(7) == [7]


def test_flatten_joins_keys_and_positions():
    assert tree.flatten({"a": {"b": 1, "c": [2, 3]}, "d": 4}) == {"a/b": 1, "a/c/0": 2, "a/c/1": 3, "d": 4}


def test_flatten_drops_empty_containers():
    assert tree.flatten({"a": {}, "b": [], "c": 1}) == {"c": 1}


def test_flatten_refuses_two_leaves_with_one_path():
    with pytest.raises(ValueError, match="two leaves have the path 'a/b'"):
        tree.flatten({"a/b": 1, "a": {"b": 2}})
