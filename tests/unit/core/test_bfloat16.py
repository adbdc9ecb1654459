"""The bits of bfloat16 arrays."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.core.encoding.bfloat16 import BFLOAT16, contiguous_bits, to_bits


def test_bfloat16_becomes_its_bits_and_comes_back() -> None:
    array = np.array([0.0, 1.0, -2.0], BFLOAT16)
    assert to_bits(array).tolist() == [0x0000, 0x3F80, 0xC000]
    assert np.array_equal(to_bits(array).view(BFLOAT16), array)


def test_other_arrays_stay_as_they_are() -> None:
    array = np.arange(3.0)
    assert to_bits(array) is array


@pytest.mark.parametrize("shape", [(), (0,), (4, 3)])
def test_contiguous_bits_keep_the_shape(shape: tuple[int, ...]) -> None:
    array = np.asarray(np.arange(np.prod(shape)).reshape(shape).astype(BFLOAT16), order="F")
    bits = contiguous_bits(array)
    assert (bits.dtype, bits.shape, bits.flags.c_contiguous) == (np.uint16, shape, True)
