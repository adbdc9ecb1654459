"""The built-in test environment, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.envs.dummy import Dummy


def act(env: Dummy, action: int, reset: bool = False) -> dict:
    return env.step({"action": np.int32(action), "reset": reset})


def test_an_episode_of_three_steps() -> None:
    env = Dummy(length=3)
    observations = [act(env, action) for action in (0, 0, 9, 2)]
    table = [
        # count, rewarded action shown, reward, first, last
        (0, 0, 0.0, True, False),
        (1, 1, 1.0, False, False),
        (2, 2, 0.0, False, False),
        (3, 3, 1.0, False, True),
    ]
    for obs, (count, shown, reward, first, last) in zip(observations, table, strict=True):
        assert obs["count"] == count
        assert obs["vector"].tolist() == [float(index == shown) for index in range(5)]
        assert (obs["reward"], obs["is_first"], obs["is_last"]) == (reward, first, last)
        assert not obs["is_terminal"]


def test_after_the_last_step_an_episode_begins_whatever_the_action() -> None:
    env = Dummy(length=1)
    act(env, 0)
    assert act(env, 0)["is_last"]
    obs = act(env, 1)
    assert (obs["count"], obs["reward"], obs["is_first"], obs["is_last"]) == (0, 0, True, False)


def test_reset_begins_an_episode_at_any_time() -> None:
    env = Dummy(length=10)
    for _ in range(4):
        act(env, 0)
    obs = act(env, 3, reset=True)
    assert (obs["count"], obs["reward"], obs["is_first"]) == (0, 0, True)
    assert act(env, 0)["count"] == 1


def test_taking_the_action_shown_earns_the_length() -> None:
    env = Dummy(length=12)
    obs = act(env, 0)
    total = 0.0
    while not obs["is_last"]:
        obs = act(env, int(obs["vector"].argmax()))
        total += float(obs["reward"])
    assert total == 12


def test_the_seed_decides_the_images_and_nothing_else_changes() -> None:
    one, same, other = (act(Dummy(seed=seed, size=8), 0)["image"] for seed in (1, 1, 2))
    assert one.shape == (8, 8, 3)
    assert (one == same).all()
    assert (one != other).any()


@pytest.mark.parametrize("size", [8, 64])
def test_images_have_the_size_asked_for(size: int) -> None:
    env = Dummy(size=size)
    assert env.obs_space["image"].shape == act(env, 0)["image"].shape == (size, size, 3)
