"""Catch, played by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.builtin.catch import Catch
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites.catch import make

LEFT, STAY, RIGHT = 0, 1, 2


def act(env: Catch, action: int, reset: bool = False) -> dict[str, Any]:
    return env.step({"action": np.int32(action), "reset": np.bool_(reset)})


def board(obs: dict[str, Any]) -> np.ndarray:
    return np.asarray(obs["vector"]).reshape(10, 5)


def test_the_ball_falls_and_the_paddle_moves_within_the_board() -> None:
    env = Catch(0, image=False)
    column = int(board(act(env, STAY))[0].argmax())
    for row, (action, paddle) in enumerate([(LEFT, 1), (LEFT, 0), (LEFT, 0), (RIGHT, 1), (STAY, 1)], start=1):
        obs = act(env, action)
        assert np.argwhere(board(obs)).tolist() == [[row, column], [9, paddle]]
        assert (obs["reward"], obs["is_first"], obs["is_last"]) == (0, False, False)


@pytest.mark.parametrize("catches", [True, False])
def test_after_nine_steps_the_ball_is_caught_or_not_and_the_episode_terminates(catches: bool) -> None:
    env = Catch(1, image=False)
    for _ in range(20):
        obs = act(env, STAY)
        assert obs["is_first"]
        column = int(board(obs)[0].argmax())
        target = column if catches else (column + 2) % 5
        for step in range(1, 10):
            paddle = int(board(obs)[9].argmax())
            obs = act(env, STAY + int(np.sign(target - paddle)))
            assert obs["is_last"] == obs["is_terminal"] == (step == 9)
        assert obs["reward"] == (1 if catches else -1)
    assert env.optimum == 1


def test_chance_is_what_random_play_earns() -> None:
    env, rng, returns = Catch(2, image=False), np.random.default_rng(0), []
    for action in rng.integers(0, 3, 20_000):
        obs = act(env, int(action))
        if obs["is_last"]:
            returns.append(float(obs["reward"]))
    assert env.chance == pytest.approx(-0.6)
    assert np.mean(returns) == pytest.approx(env.chance, abs=0.08)  # over two standard errors of 2,000 episodes


def test_the_image_shows_the_same_board_as_the_vector() -> None:
    seen, told = make("default", EnvOptions(), 5), make("vector", EnvOptions(), 5)
    assert seen.obs_space["image"].shape == (48, 48, 1)
    rng = np.random.default_rng(0)
    for action in rng.integers(0, 3, 50):
        image, cells = act(seen, int(action))["image"], board(act(told, int(action)))
        assert (image[:40, :45, 0] == np.kron(cells, np.full((4, 9), 255))).all()
        assert not image[40:].any() and not image[:, 45:].any()


def test_the_size_comes_from_the_options() -> None:
    env = make("default", EnvOptions(size=(64, 96)), 0)
    assert act(env, STAY)["image"].shape == env.obs_space["image"].shape == (64, 96, 1)


def test_reset_begins_an_episode_at_any_time() -> None:
    env = Catch(0, image=False)
    for _ in range(4):
        act(env, LEFT)
    obs = act(env, LEFT, reset=True)
    assert obs["is_first"]
    assert board(obs)[9].argmax() == 2


@pytest.mark.parametrize("kwargs", [{"columns": 0}, {"rows": 2}, {"rows": 60}, {"columns": 50, "rows": 40}])
def test_a_board_that_cannot_be_played_is_refused(kwargs: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"catch:default: a board of .* cannot be played: set env.kwargs.rows"):
        make("default", EnvOptions(), 0, **kwargs)
