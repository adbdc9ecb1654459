from __future__ import annotations

import json
import math
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamfleet.core.errors import SpaceMismatch
from dreamfleet.core.spaces import Space

SPACES = {
    "image": Space(np.uint8, (64, 64, 3)),
    "flag": Space(bool),
    "reward": Space(np.float32),
    "bounded": Space(np.float32, (3,), -1, [1, 2, 3]),
    "above zero": Space(np.float32, (2,), low=0),
    "below zero": Space(np.float64, (2,), high=0),
    "choice": Space(np.int32, (), 0, 5),
    "choices": Space(np.int64, (2,), [0, 10], [2, 13]),
    "any int64": Space(np.int64),
    "any uint64": Space(np.uint64, (4,)),
    "nothing": Space(np.float32, (0,)),
    "half": Space(ml_dtypes.bfloat16, (2,)),
}
each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


@pytest.mark.parametrize(
    ("space", "value", "reason"),
    [
        (Space(np.float32, (2,)), np.zeros(3, np.float32), r"shape \(3,\) instead of \(2,\)"),
        (Space(np.float32, (2,)), np.zeros(2, np.float64), "dtype float64 instead of float32"),
        (Space(np.float32), np.float32(np.nan), "NaN"),
        (Space(np.float32, (2,), 0, 1), np.array([0, np.nan], np.float32), r"NaN at \[1\]"),
        (Space(ml_dtypes.bfloat16), np.array(np.nan, ml_dtypes.bfloat16), "NaN"),
        (Space(np.float32, (), 0, 1), np.float32(1.5), r"value 1\.5 above 1\.0"),
        (Space(np.float32, (2,), [0, -9], 1), np.array([-3, -5], np.float32), r"value -3\.0 at \[0\] below 0\.0"),
        (Space(np.int32, (), 0, 5), np.int32(5), "value 5 above 4"),
        (Space(np.int32, (), 0, 5), np.int32(-1), "value -1 below 0"),
        (Space(np.int32, (2,), 0, [2, 9]), np.array([2, 8], np.int32), r"value 2 at \[0\] above 1"),
        (Space(np.uint8, (), 0, 255), np.uint8(255), "value 255 above 254"),
        (Space(np.uint64, (), 0, 5), np.uint64(2**63 + 5), f"value {2**63 + 5} above 4"),
        (Space(bool), np.uint8(1), "dtype uint8 instead of bool"),
        (Space(bool, (), 1, 2), np.bool_(False), "value False below 1"),
    ],
)
def test_violation_says_what_is_wrong(space, value, reason):
    violation = space.violation(value)
    assert violation is not None
    assert re.fullmatch(reason, violation)
    assert not space.contains(value)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (Space(np.float32, (), 0, 1), np.float32(1)),
        (Space(np.float32), np.float32(np.inf)),
        (Space(np.int32, (), 0, 5), np.int32(4)),
        (Space(np.uint8, (2,)), np.array([0, 255], np.uint8)),
        (Space(np.int64), np.int64(2**63 - 1)),
        (Space(np.uint64), np.uint64(2**64 - 1)),
        (Space(bool), True),
        (Space(np.float32, (0,)), np.zeros(0, np.float32)),
    ],
)
def test_the_limits_themselves_belong_to_the_space(space, value):
    assert space.violation(value) is None


@each_space
@pytest.mark.parametrize("batch", [(), (5,), (2, 3)])
def test_samples_belong_to_the_space(space, batch):
    samples = space.sample(np.random.default_rng(0), batch)
    assert samples.shape == (*batch, *space.shape)
    for sample in samples.reshape(math.prod(batch), *space.shape):
        assert space.violation(sample) is None


@given(low=st.floats(-1e6, 1e6, width=32), width=st.floats(0, 1e6, width=32), seed=st.integers(0, 2**32 - 1))
def test_samples_of_any_interval_stay_inside_it(low, width, seed):
    space = Space(np.float32, (8,), low, low + width)
    assert space.contains(space.sample(np.random.default_rng(seed)))


def test_samples_reach_every_class():
    drawn = Space(np.int32, (), 2, 5).sample(np.random.default_rng(0), (200,))
    assert set(drawn.tolist()) == {2, 3, 4}


@each_space
def test_json_gives_the_same_space_back(space):
    assert Space(**json.loads(json.dumps(space.to_json(), allow_nan=False))) == space


def test_json_of_an_image_is_short():
    assert len(json.dumps(Space(np.uint8, (64, 64, 3), 0, 255).to_json())) < 100


def test_classes_count_the_values_of_each_element():
    assert SPACES["choices"].classes.tolist() == [2, 3]
    assert SPACES["flag"].classes == 2
    assert Space(np.uint8).classes == 256
    with pytest.raises(SpaceMismatch, match="continuous"):
        _ = SPACES["reward"].classes


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(np.float32, 1, 0), (np.int32, 3, 3), (np.int32, 4, 3), (np.float32, np.nan, 1)]
)
def test_an_empty_space_is_refused(dtype, low, high):
    with pytest.raises(SpaceMismatch, match="is empty"):
        Space(dtype, (), low, high)


def test_a_float_space_of_one_value_is_allowed():
    assert Space(np.float32, (), 1, 1).contains(np.float32(1))


@pytest.mark.parametrize("dtype", [object, str, np.complex64, "datetime64[s]"])
def test_a_dtype_that_cannot_travel_is_refused(dtype):
    with pytest.raises(SpaceMismatch, match="only booleans, integers and floats"):
        Space(dtype)


def test_bounds_do_not_follow_the_callers_array():
    low = np.zeros(2, np.float32)
    space = Space(np.float32, (2,), low, 1)
    low[:] = 5
    assert space.low.tolist() == [0, 0]


def test_spaces_differ_by_dtype_shape_and_bounds():
    space = Space(np.int32, (2,), 0, 5)
    assert space == Space(np.int32, (2,), [0, 0], [5, 5])
    assert hash(space) == hash(Space(np.int32, (2,), [0, 0], [5, 5]))
    for other in (
        Space(np.int64, (2,), 0, 5),
        Space(np.int32, (3,), 0, 5),
        Space(np.int32, (2,), 1, 5),
        Space(np.int32, (2,), 0, 6),
        "int32",
    ):
        assert space != other


def test_a_finite_space_lacks_infinities_only():
    wide = Space(np.float32, (2,), [-np.inf, 0.0], [np.inf, 1.0]).finite()
    assert wide.contains(np.array([3e38, 1.0], np.float32))
    assert not wide.contains(np.array([np.inf, 1.0], np.float32))
    assert not wide.contains(np.array([0.0, 1.5], np.float32))
    assert Space(np.uint8, (2,)).finite() == Space(np.uint8, (2,))
