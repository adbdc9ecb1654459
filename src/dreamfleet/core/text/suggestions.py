"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

SIMILARITY = 0.6


def closest_names(
    name: str, known: Iterable[str], count: int = 1, similarity: float = SIMILARITY, ignore_case: bool = False
) -> list[str]:
    """Return up to `count` known names with similar spelling, closest first."""
    spelt = {other.lower() if ignore_case else other: other for other in known}
    wanted = name.lower() if ignore_case else name
    return [spelt[found] for found in difflib.get_close_matches(wanted, spelt, count, similarity)]


def did_you_mean(names: Iterable[str], otherwise: str, show: Callable[[str], str] = repr) -> str:
    """Return "did you mean 'name'?" for the results of `closest_names`, or `otherwise` if there are none."""
    found = " or ".join(show(name) for name in names)
    return f"did you mean {found}?" if found else otherwise
