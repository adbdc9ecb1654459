"""Observations and actions as vectors."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.core.spaces import Space
from dreamfleet.model.spaces import Spaces, class_counts, image_keys, vector_keys, width
from dreamfleet.model.vectors import action_vector, by_element, is_missing, observation_vector, one_hot
from support import dreamer_reference as ref

MIXED = Spaces(
    zeta=Space(np.float32, (2, 2)),
    camera=Space(np.uint8, (12, 12, 3)),
    flag=Space(bool),
    alpha=Space(np.int32, (), 2, 6),
    beta=Space(np.int32, (3,), [0, -1, 5], [2, 3, 8]),
    level=Space(np.uint8, (2,), 0, 3),
    switches=Space(bool, (2,)),
)


def draw(spaces: Spaces, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {key: space.sample(rng, (rows,)) for key, space in spaces.items()}


def test_vectors_come_by_sorted_key_and_images_as_declared() -> None:
    spaces = Spaces(b=Space(np.uint8, (12, 12, 1)), z=Space(np.float32), a=Space(np.uint8, (12, 12, 3)), c=Space(bool))
    assert vector_keys(spaces) == ["c", "z"]
    assert image_keys(spaces) == ["b", "a"]


def test_widths_count_classes_of_every_element() -> None:
    assert [width(MIXED[key]) for key in ("zeta", "flag", "alpha", "beta", "level", "switches")] == [4, 2, 4, 9, 6, 4]
    assert class_counts(MIXED["beta"]) == [2, 4, 3]


def test_every_kind_of_observation_becomes_a_vector() -> None:
    obs = draw(MIXED, 8)
    found = observation_vector(MIXED, {key: jnp.asarray(x) for key, x in obs.items()}, True, jnp.float32)
    expected = [ref.observation_vector(MIXED, {key: x[row] for key, x in obs.items()}) for row in range(8)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_without_squashing_floats_stay_as_they_are() -> None:
    spaces = Spaces(x=Space(np.float32, (2,)))
    found = observation_vector(spaces, {"x": jnp.asarray([[3.0, -40.0]])}, False, jnp.float32)
    assert found.tolist() == [[3.0, -40.0]]


def test_large_floats_are_squashed_before_they_lose_precision() -> None:
    spaces = Spaces(x=Space(np.float32, (1,)))
    found = observation_vector(spaces, {"x": jnp.asarray([[1e6]])}, True, jnp.float16)
    assert float(found[0, 0]) == pytest.approx(np.log(1e6 + 1), rel=1e-3)


def test_missing_values_become_zeros_of_the_whole_key() -> None:
    spaces = Spaces(count=Space(np.int32, (2,), 0, 3), goal=Space(np.float32, (2,)))
    obs = {
        "count": jnp.asarray([[1, 2], [-1, 2], [1, 0]], jnp.int32),
        "goal": jnp.asarray([[-jnp.inf, 4.0], [1.0, 0.0], [0.0, 1.0]]),
    }
    assert is_missing(spaces["count"], obs["count"]).tolist() == [False, True, False]
    assert is_missing(spaces["goal"], obs["goal"]).tolist() == [True, False, False]
    found = np.asarray(observation_vector(spaces, obs, True, jnp.float32))
    half = np.log(2.0)
    expected = [[0, 1, 0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0, half, 0], [0, 1, 0, 1, 0, 0, 0, half]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_minus_one_is_a_value_where_the_space_has_it_and_nothing_special_where_there_is_no_sign() -> None:
    assert is_missing(Space(np.int32, (), -1, 2), jnp.asarray([-1, 0])).tolist() == [False, False]
    assert is_missing(Space(np.uint8, (), 0, 255), jnp.asarray([255, 0], jnp.uint8)).tolist() == [False, False]


def test_actions_of_every_kind_become_a_vector() -> None:
    spaces = Spaces(
        turn=Space(np.int32, (), 0, 4),
        arm=Space(np.float32, (2,), -1, 1),
        keys=Space(np.int32, (2,), [0, 1], [3, 3]),
        fire=Space(bool),
    )
    action = draw(spaces, 6)
    action["arm"] *= 3  # a sample of the policy may leave the space; the vector keeps it
    found = action_vector(spaces, {key: jnp.asarray(x) for key, x in action.items()}, jnp.float32)
    expected = [ref.action_vector(spaces, {key: x[row] for key, x in action.items()}) for row in range(6)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_one_hot_of_a_value_without_a_class_is_zero() -> None:
    for space in (Space(np.int32, (2,), 0, 3), Space(np.int32, (2,), 0, [3, 2])):
        assert float(jnp.abs(one_hot(space, jnp.asarray([[-1, 7]], jnp.int32), jnp.float32)).max()) == 0


def test_logits_of_unequal_elements_get_rows_filled_with_minus_infinity() -> None:
    space = Space(np.int32, (3,), 0, [2, 4, 3])
    logits = jnp.arange(9.0)
    none = -np.inf
    expected = [[0, 1, none, none], [2, 3, 4, 5], [6, 7, 8, none]]
    assert by_element(space, logits).tolist() == expected
