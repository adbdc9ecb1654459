"""Blocks fall onto a small board and full rows disappear: a board game that an agent learns in minutes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

# Rows and columns that a block covers. The number of a block, from 1 on, is the value of its cells.
BLOCKS = ((1, 1), (1, 2), (2, 1))
ABOVE = 2  # rows in which the next block waits


class Blocks(gymnasium.Env[Any, Any]):
    """The action is the column into which the left side of the waiting block falls, as far to the right as it fits.

    A full row disappears with a reward of 1. The episode terminates with a block that does not fit under the top, and
    is truncated after `blocks` of them. `board` shows the waiting block in the middle of its two uppermost rows. It
    declares values up to `high`, where an author who does not count declares 255.
    """

    def __init__(self, rows: int = 4, columns: int = 6, blocks: int = 30, high: int = len(BLOCKS)) -> None:
        if rows < 2 or columns < 2 or blocks < 1 or not len(BLOCKS) <= high <= 255:
            raise ValueError(
                f"{blocks} blocks on a board of {rows}x{columns} with values up to {high} cannot be played"
            )
        self.observation_space = spaces.Dict({"board": spaces.Box(0, high, (ABOVE + rows, columns), np.uint8)})
        self.action_space = spaces.Discrete(columns)
        self._most = blocks
        self._board = np.zeros((rows, columns), np.uint8)
        self._block = 1
        self._fallen = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self._board[:] = 0
        self._fallen = 0
        self._draw_block()
        return self._observe(), {}

    def step(self, action: np.integer) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        high, wide = BLOCKS[self._block - 1]
        left = min(int(action), self._board.shape[1] - wide)
        taken = np.flatnonzero(self._board[:, left : left + wide].any(axis=1))
        free = int(taken[0]) if len(taken) else len(self._board)  # rows above the block's place
        terminated = free < high
        if not terminated:
            self._board[free - high : free, left : left + wide] = self._block
        full = self._board.all(axis=1)
        if full.any():
            kept = self._board[~full]
            self._board[:] = 0
            self._board[len(self._board) - len(kept) :] = kept
        self._fallen += 1
        self._draw_block()
        return self._observe(), float(full.sum()), terminated, self._fallen >= self._most, {}

    def _draw_block(self) -> None:
        self._block = int(self.np_random.integers(len(BLOCKS))) + 1

    def _observe(self) -> dict[str, np.ndarray]:
        rows, columns = self._board.shape
        board = np.zeros((ABOVE + rows, columns), np.uint8)
        board[ABOVE:] = self._board
        high, wide = BLOCKS[self._block - 1]
        left = (columns - wide) // 2
        board[ABOVE - high : ABOVE, left : left + wide] = self._block
        return {"board": board}
