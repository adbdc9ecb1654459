"""Falling blocks, played by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.spaces import Space
from dreamfleet.envs.builtin.blocks import BLOCKS, Blocks
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import make_env
from dreamfleet.envs.suites.blocks import make

ONE, WIDE, HIGH = 1, 2, 3


def drop(env: Blocks, block: int, column: int) -> tuple[list[list[int]], float, bool, bool]:
    """The board below the waiting block, after `block` has fallen."""
    env._block = block
    obs, reward, terminated, truncated, _ = env.step(np.int64(column))
    return obs["board"][2:].tolist(), reward, terminated, truncated


def test_blocks_fall_onto_what_lies_below_all_of_their_columns() -> None:
    env = Blocks(rows=3, columns=4)
    env.reset(seed=0)
    assert drop(env, ONE, 1)[0] == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert drop(env, WIDE, 0)[0] == [[0, 0, 0, 0], [2, 2, 0, 0], [0, 1, 0, 0]]
    assert drop(env, HIGH, 3)[0] == [[0, 0, 0, 0], [2, 2, 0, 3], [0, 1, 0, 3]]
    assert drop(env, WIDE, 3)[0] == [[0, 0, 2, 2], [2, 2, 0, 3], [0, 1, 0, 3]]  # moved to the left, where it fits


def test_full_rows_disappear_with_a_reward_each_and_the_rest_moves_down() -> None:
    env = Blocks(rows=3, columns=3)
    env.reset(seed=0)
    drop(env, WIDE, 0)
    drop(env, WIDE, 0)
    drop(env, ONE, 0)
    assert drop(env, HIGH, 2) == ([[0, 0, 0], [0, 0, 0], [1, 0, 0]], 2.0, False, False)


def test_a_block_that_does_not_fit_terminates_and_the_last_of_all_truncates() -> None:
    env = Blocks(rows=2, columns=2, blocks=3)
    env.reset(seed=0)
    assert drop(env, ONE, 0)[1:] == (0.0, False, False)
    assert drop(env, HIGH, 0) == ([[0, 0], [1, 0]], 0.0, True, False)
    env.reset()
    assert drop(env, WIDE, 0) == ([[0, 0], [0, 0]], 1.0, False, False)
    drop(env, ONE, 0)
    assert drop(env, ONE, 1)[1:] == (1.0, False, True)


def test_the_waiting_block_is_shown_in_the_middle_above_and_all_are_drawn() -> None:
    env = Blocks(rows=2, columns=5)
    seen = set()
    for seed in range(20):
        board = env.reset(seed=seed)[0]["board"]
        cells = [tuple(cell) for cell in np.argwhere(board).tolist()]
        block = int(board.max())
        assert cells == {ONE: [(1, 2)], WIDE: [(1, 1), (1, 2)], HIGH: [(0, 2), (1, 2)]}[block]
        assert env.observation_space.contains({"board": board})
        seen.add(block)
    assert seen == {1, 2, 3} == set(range(1, 1 + len(BLOCKS)))


@pytest.mark.parametrize(
    ("kwargs", "read", "expected"),
    [
        ({}, {}, Space(np.int32, (6, 6), 0, 4)),
        ({"rows": 10, "columns": 12}, {}, Space(np.int32, (12, 12), 0, 4)),
        ({}, {"board": "numbers"}, Space(np.float32, (6, 6), 0, 3)),
        ({"high": 255}, {"board": "image"}, Space(np.uint8, (64, 64, 1))),
    ],
)
def test_the_agent_gets_the_board_as_the_run_reads_it(kwargs: Any, read: Any, expected: Space) -> None:
    env: Any = make_env("blocks", 0, 0, kwargs, options=EnvOptions(read=read))
    assert env.obs_space["board"] == expected
    first = env.step({"action": np.int32(0), "reset": np.True_})["board"]
    assert env.obs_space["board"].contains(first)
    assert first.max() <= 3 or not kwargs


def test_a_board_that_cannot_be_played_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"blocks:default: .*1x6.* cannot be played: set env.kwargs.rows"):
        make("default", EnvOptions(), 0, rows=1)
    with pytest.raises(ConfigError, match="has no task 'tetris'"):
        make("tetris", EnvOptions(), 0)
