"""Phrases with numbers."""

from __future__ import annotations

import math

from dreamfleet.core.text.formatting import plural


def roughly(seconds: float) -> str:
    """Format an estimated time with one unit."""
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * size:
            return f"about {plural(round(seconds / size), name)}"
    return f"about {plural(math.ceil(seconds), 'second')}"


def update_pace(batch_steps: int, train_ratio: float) -> str:
    """Describe the ratio of updates to env steps, such as "1 update per 32 env steps"."""
    if train_ratio <= 0:
        return "unlimited updates"
    steps = batch_steps / train_ratio
    if steps == 1:
        return "1 update per env step"
    if steps > 1:
        return f"1 update per {_trimmed(steps)} env steps"
    return f"{_trimmed(1 / steps)} updates per env step"


def _trimmed(number: float) -> str:
    """Format with at most two decimals, without trailing zeros."""
    text = f"{number:,.2f}"
    return text.rstrip("0").rstrip(".")
