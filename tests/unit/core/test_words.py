"""What people read of waits, and that each has words."""

from __future__ import annotations

import pytest

from dreamfleet.core.text.words import WAIT_WORDS, limiter_words, wait_words, waited_status, waits_status
from dreamfleet.core.waits import LimiterState, Wait


def test_every_wait_has_words_of_its_own() -> None:
    assert WAIT_WORDS.keys() == set(Wait)
    assert len(set(WAIT_WORDS.values())) == len(Wait)


def test_a_wait_of_an_environment_names_it() -> None:
    assert wait_words(Wait.REPLAY_TO_SAMPLE) == "replay to sample"
    assert wait_words(Wait.ENV_STEP, "train environment 3 (Pong)") == "train environment 3 (Pong) in step"


def test_a_status_has_waits_by_name_and_in_the_words_it_always_had() -> None:
    found = waits_status({Wait.ACTIONS: 0.5}, (Wait.ENV_RESTART, "train environment 0 (Pong)", 4.0))
    assert found == {
        "waiting": {"actions": 0.5, "train environment 0 (Pong) to restart": 4.0},
        "waits": [
            {"wait": "actions", "env": "", "seconds": 0.5},
            {"wait": "env_restart", "env": "train environment 0 (Pong)", "seconds": 4.0},
        ],
    }
    assert waited_status({Wait.REPLAY_TO_SAMPLE: 7.0}) == {
        "wait_s": {"replay to sample": 7.0},
        "waited_s": {"replay_to_sample": 7.0},
    }


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (LimiterState.OPEN, "nothing"),
        (LimiterState.FIRST_UPDATE, "2,310 of 2,992 steps before the first update"),
        (LimiterState.STEPS, "682 more steps to be inserted"),
        (LimiterState.WINDOW, "a stream long enough for one window"),
        (LimiterState.SAMPLES, "682 more windows to be sampled"),
    ],
)
def test_the_limiter_says_what_is_missing(state: LimiterState, words: str) -> None:
    assert limiter_words(state, missing=682, inserted=2310) == words
    assert state.holds_envs is (state is LimiterState.SAMPLES)
