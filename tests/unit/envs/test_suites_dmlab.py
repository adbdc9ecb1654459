"""DeepMind Lab against a stand-in of its library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites import dmlab
from support.fake_suites import Lab, install


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lab, "made", [])
    install(monkeypatch, deepmind_lab={"Lab": Lab})


def play(env: dmlab.Lab, actions: list[int]) -> list[dict[str, Any]]:
    observations = [env.step({"action": np.int32(action), "reset": np.bool_(False)}) for action in actions]
    for obs in observations:
        assert {key: space.violation(obs[key]) for key, space in env.obs_space.items()} == dict.fromkeys(obs)
    return observations


def test_a_level_with_the_published_settings() -> None:
    env = dmlab.make("explore_goal_locations_small", EnvOptions(), 0)
    (lab,) = Lab.made
    assert lab.level == "contributed/dmlab30/explore_goal_locations_small"
    assert lab.config == {"height": "64", "width": "64", "logLevel": "WARN"}
    assert env.act_space["action"].high == 15
    first, second, third, last, again = play(env, [0, 0, 14, 12, 0])
    assert lab.actions == [([0, 0, 0, 1, 0, 0, 0], 4), ([0, 0, 0, 0, 1, 0, 0], 4), ([-60, 0, 0, 1, 0, 0, 0], 4)]
    assert [float(obs["reward"]) for obs in (first, second, third, last, again)] == [0, 4, 0, 2, 0]
    assert [int(obs["image"][0, 0, 0]) for obs in (first, second, third, last, again)] == [0, 4, 8, 8, 0]
    assert (first["is_first"], last["is_last"], last["is_terminal"], again["is_first"]) == (True, True, True, True)


def test_actions_are_distinct_and_as_many_as_published() -> None:
    assert len(set(dmlab.ACTIONS)) == len(dmlab.ACTIONS) == 15
    assert len(set(dmlab.tasks())) == 30


def test_levels_that_are_not_episodic_truncate() -> None:
    env = dmlab.make("rooms_watermaze", EnvOptions(size=(48, 96), repeat=10), 0, episodic=False)
    first, last = play(env, [0, 0])
    assert first["image"].shape == (48, 96, 3)
    assert (last["reward"], last["is_last"], last["is_terminal"]) == (10, True, False)


def test_episodes_are_seeded_from_ours_or_not_at_all() -> None:
    for seed, use_seed in ((1, True), (1, True), (2, True), (1, False)):
        env = dmlab.make("rooms_watermaze", EnvOptions(repeat=10), seed, use_seed=use_seed)
        play(env, [0] * 5)
    one, same, other, unseeded = (lab.seeds for lab in Lab.made)
    assert one == same != other
    assert len(set(one)) == 3
    assert unseeded == [None] * 3


def test_language_levels_embed_their_words() -> None:
    env = dmlab.make("language_select_described_object", EnvOptions(), 0)
    rows = play(env, [0])[0]["instruction"].reshape(32, 32)
    assert np.abs(rows[:4]).sum(1).all()  # "Pick the red ball"
    assert not rows[4:].any()
    other = dmlab.embed("RED, the ball").reshape(32, 32)
    assert np.array_equal(other[:3], rows[[2, 1, 3]])
    assert np.abs(np.corrcoef(rows[:4]) - np.eye(4)).max() < 0.7
    assert dmlab.embed("go " * 50).shape == (1024,)


def test_other_levels_by_path_and_held_out_ones() -> None:
    dmlab.make("tests/empty_room_test", EnvOptions(), 0)
    dmlab.make("rooms_collect_good_objects_test", EnvOptions(), 0)
    assert Lab.made[0].level == "tests/empty_room_test"
    assert Lab.made[1].config["allowHoldOutLevels"] == "true"
    with pytest.raises(ConfigError, match="did you mean dmlab:rooms_watermaze"):
        dmlab.make("room_watermaze", EnvOptions(), 0)
