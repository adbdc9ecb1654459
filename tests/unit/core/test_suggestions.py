"""Which names are offered for one that is not known."""

from __future__ import annotations

from dreamfleet.core.text.suggestions import closest_names, did_you_mean

KNOWN = ["crafter", "catch", "Pong-v5"]


def test_the_closest_names_come_first() -> None:
    assert closest_names("crafte", KNOWN, 3) == ["crafter"]
    assert closest_names("xyz", KNOWN) == []


def test_case_is_ignored_where_asked_and_kept_in_the_answer() -> None:
    assert closest_names("PONG-V5", KNOWN) == []
    assert closest_names("PONG-V5", KNOWN, ignore_case=True) == ["Pong-v5"]


def test_without_a_name_the_other_hint_is_given() -> None:
    assert did_you_mean(["a", "b"], "there are none") == "did you mean 'a' or 'b'?"
    assert did_you_mean(["a"], "there are none", lambda name: f"gym:{name}") == "did you mean gym:a?"
    assert did_you_mean([], "there are none") == "there are none"
