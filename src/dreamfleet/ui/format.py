"""Phrases with numbers in them."""

from __future__ import annotations

import math

from dreamfleet.core.text.formatting import plural


def roughly(seconds: float) -> str:
    """One unit in full, for a time that is a guess."""
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * size:
            return f"about {plural(round(seconds / size), name)}"
    return f"about {plural(math.ceil(seconds), 'second')}"


def update_pace(batch_steps: int, train_ratio: float) -> str:
    """How updates follow from env steps: "1 update per 32 env steps", or the other way round where they are more."""
    if train_ratio <= 0:
        return "as many updates as the learner can make"
    steps = batch_steps / train_ratio
    if steps == 1:
        return "1 update per env step"
    if steps > 1:
        return f"1 update per {_trimmed(steps)} env steps"
    return f"{_trimmed(1 / steps)} updates per env step"


def _trimmed(number: float) -> str:
    """Two digits after the point at most, and none that are zero."""
    text = f"{number:,.2f}"
    return text.rstrip("0").rstrip(".")
