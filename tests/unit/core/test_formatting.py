"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from dreamfleet.core.text import formatting


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formatting.count(12345.6), "12,345"),
        (formatting.short_count(12_345_678), "12.3M"),
        (formatting.short_count(999), "999"),
        (formatting.plural(1, "worker"), "1 worker"),
        (formatting.plural(2000, "worker"), "2,000 workers"),
        (formatting.rate(99.96), "100.0"),
        (formatting.rate(1234.4), "1,234"),
        (formatting.value(math.nan), "nan"),
        (formatting.value(-0.5), "-0.50"),
        (formatting.nbytes(49_999_999), "50.0 MB"),
        (formatting.nbytes(5e7), "0.1 GB"),
        (formatting.duration(59.9), "59s"),
        (formatting.duration(3720), "1h 02m"),
        (formatting.size_text(1 << 30), "1 GiB"),
        (formatting.size_text(3 << 19), "1.5 MiB"),
        (formatting.size_text(1000), "1000 bytes"),
    ],
)
def test_a_number_is_written_for_people(text: str, expected: str) -> None:
    assert text == expected
