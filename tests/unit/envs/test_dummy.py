"""The built-in test environment, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.builtin.dummy import TASKS, Dummy, SpaceKinds
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites.dummy import make


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


def play(env: SpaceKinds, actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [env.step({**action, "reset": np.bool_(False)}) for action in actions]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_stays_within_its_spaces_and_repeats_under_a_seed(task: str) -> None:
    runs = []
    for seed in (3, 3, 4):
        env, rng = make(task, EnvOptions(), seed, length=5), np.random.default_rng(0)
        assert isinstance(env, SpaceKinds)
        runs.append(
            play(env, [{k: s.sample(rng) for k, s in env.act_space.items() if k != "reset"} for _ in range(13)])
        )
        for obs in runs[-1]:
            assert obs.keys() == env.obs_space.keys()
            assert {key: space.violation(obs[key]) for key, space in env.obs_space.items()} == dict.fromkeys(obs)
    one, same, other = runs
    assert all(np.array_equal(a[key], b[key]) for a, b in zip(one, same, strict=True) for key in a)
    assert not all(np.array_equal(a[key], b[key]) for a, b in zip(one, other, strict=True) for key in a)


def test_tasks_cover_every_kind_of_space() -> None:
    kinds = {
        (side, space.dtype.name, len(space.shape), bool(np.isfinite(space.high).all()))
        for task in TASKS.values()
        for side, spaces in (("obs", task.obs), ("act", task.act))
        for space in spaces.values()
    }
    assert {("act", "int32", 0, True), ("act", "int32", 1, True), ("act", "bool", 1, True)} <= kinds
    assert {("act", "float32", 1, True), ("act", "float32", 1, False), ("act", "float32", 0, False)} <= kinds
    assert {("obs", "uint8", 3, True), ("obs", "int32", 0, True), ("obs", "int32", 1, True)} <= kinds
    assert {("obs", "bool", 0, True), ("obs", "bool", 1, True), ("obs", "float32", 2, False)} <= kinds
    assert {("obs", "float32", 1, True), ("obs", "float32", 1, False), ("obs", "float32", 0, False)} <= kinds
    assert any(len(set(np.ravel(space.classes))) > 1 for space in TASKS["multidiscrete"].act.values())


@pytest.mark.parametrize(("task", "terminal"), [("truncating", False), ("terminating", True), ("mixed", False)])
def test_the_end_of_an_episode_is_what_the_task_says(task: str, terminal: bool) -> None:
    env, rng = make(task, EnvOptions(), 0, length=2), np.random.default_rng(0)
    action = {key: space.sample(rng) for key, space in env.act_space.items() if key != "reset"}
    flags = [(obs["is_first"], obs["is_last"], obs["is_terminal"]) for obs in play(env, [action] * 4)]
    assert flags == [
        (True, False, False),
        (False, False, False),
        (False, True, terminal),
        (True, False, False),
    ]


def test_the_reward_is_the_share_of_elements_that_are_right() -> None:
    first, at_0, at_1 = play(
        make("mixed", EnvOptions(), 0),
        [
            mixed(0, [0, 0], [0, 0, 0], [0.1, 0.1], 0.1),  # ignored: begins the episode
            mixed(0, [0, 2], [0, 1, 0], [0.5, -0.5], -3.0),  # wrong: second dial, button, turn, force
            mixed(1, [1, 1], [1, 1, 1], [-0.5, -0.5], -3.0),  # all right at count 1
        ],
    )
    assert first["reward"] == 0
    assert at_0["reward"] == np.float32(5 / 9)
    assert at_1["reward"] == 1


def mixed(move: int, dials: list[int], buttons: list[int], turn: list[float], force: float) -> dict[str, Any]:
    return {
        "action/move": np.int32(move),
        "action/dials": np.array(dials, np.int32),
        "action/buttons": np.array(buttons, bool),
        "action/arm/turn": np.array(turn, np.float32),
        "action/arm/force": np.float32(force),
    }


def test_optimum_and_chance_by_hand() -> None:
    assert (Dummy(length=10).optimum, Dummy(length=10).chance) == (10, 2)
    env = make("mixed", EnvOptions(), 0, length=9)
    # Over 9 steps: 1/4 for moving, 1/2 and 1/3 for the dials, 1/2 for each of 3 buttons, 2 turns and the force.
    assert env.optimum == 9
    assert env.chance == pytest.approx(1 / 4 + 1 / 2 + 1 / 3 + 6 / 2)


def test_log_keys_are_declared_and_count() -> None:
    observations = play(make("logs", EnvOptions(), 0, length=2), [{"action": np.int32(0)}] * 3)
    assert [(float(obs["log/twice"]), bool(obs["log/flag"])) for obs in observations] == [
        (0, False),
        (2, False),
        (4, True),
    ]


def test_a_task_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="suite 'dummy' has no task 'discret': did you mean dummy:discrete"):
        make("discret", EnvOptions(), 0)
