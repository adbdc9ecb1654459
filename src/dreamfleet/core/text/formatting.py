"""Human-readable numbers."""

from __future__ import annotations

import math


def count(number: float) -> str:
    """Format 12345 as 12,345."""
    return f"{int(number):,}"


def short_count(number: float) -> str:
    """Format 12,345,678 as 12.3M, for narrow columns."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(int(number))


def plural(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def rate(number: float) -> str:
    """Format a rate with three significant digits."""
    if number >= 100:
        return count(round(number))
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def value(number: float) -> str:
    """Format a return or another metric of any magnitude."""
    if not math.isfinite(number):
        return str(number)
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def nbytes(number: float) -> str:
    """Format a number of bytes in decimal units."""
    return f"{number / 1e9:.1f} GB" if number >= 5e7 else f"{number / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """Format a duration with two units, such as 1h 02m."""
    whole = max(0, int(seconds))
    for size, smaller, names in ((86400, 3600, "dh"), (3600, 60, "hm"), (60, 1, "ms")):
        if whole >= size:
            return f"{whole // size}{names[0]} {whole % size // smaller:02d}{names[1]}"
    return f"{whole}s"


def size_text(size: int) -> str:
    """Format a limit in binary units."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} bytes"
