"""The memory task, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.builtin.memory import Memory
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites.memory import make


def play(env: Memory, choice: int | None, other: int = 0) -> tuple[list[tuple[float, float]], int, float]:
    """One episode: (cue shown, go) of each observation, the cue, and the return. No choice: takes the cue's number."""
    obs = env.step({"action": np.int32(0), "reset": np.bool_(False)})
    cue, rewards = int(obs["cue"].argmax()), []
    shown = [(float(obs["cue"].sum()), float(obs["go"][0]))]
    assert obs["is_first"]
    while not obs["is_last"]:
        action = (cue if choice is None else choice) if obs["go"][0] else other
        obs = env.step({"action": np.int32(action), "reset": np.bool_(False)})
        shown.append((float(obs["cue"].sum()), float(obs["go"][0])))
        rewards.append(float(obs["reward"]))
    assert obs["is_terminal"]
    assert not any(rewards[:-1])
    return shown, cue, rewards[-1]


def test_the_cue_is_shown_first_and_asked_for_after_the_delay() -> None:
    shown, _, _ = play(Memory(0, delay=3), 0)
    assert shown == [(1, 0), (0, 0), (0, 0), (0, 0), (0, 1), (0, 0)]


def test_without_a_delay_the_question_follows_the_cue() -> None:
    assert play(Memory(0, delay=0), 0)[0] == [(1, 0), (0, 1), (0, 0)]


@pytest.mark.parametrize("other", [0, 1])
def test_only_the_last_action_counts(other: int) -> None:
    env = make("default", EnvOptions(), 0)
    assert all(play(env, None, other)[2] == env.optimum == 1 for _ in range(20))


def test_a_policy_without_memory_is_right_by_chance() -> None:
    env = make("default", EnvOptions(), 1, cues=4, delay=1)
    results = [play(env, 2)[1:] for _ in range(2000)]
    assert all(reward == (cue == 2) for cue, reward in results)
    assert env.chance == 0.25
    assert np.mean([reward for _, reward in results]) == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("kwargs", [{"cues": 1}, {"delay": -1}])
def test_what_makes_no_task_is_refused(kwargs: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"make no task: set env.kwargs.cues"):
        make("default", EnvOptions(), 0, **kwargs)
