"""A ball falls down a board and a paddle at the bottom catches it: the smallest task that needs to see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.spaces import Space


class Catch:
    """The ball starts in a random column of the top row and falls one row a step; the paddle starts in the middle.

    Actions are left, stay and right. The episode terminates when the ball reaches the bottom row, with a reward of 1
    if the paddle is below it and -1 if not. `image` shows the board with one white block for each of the two; `vector`
    is the board itself, row by row, with ones there.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        image: bool = True,
        size: tuple[int, int] = (48, 48),
        rows: int = 10,
        columns: int = 5,
    ) -> None:
        # The paddle must reach either side before the ball lands, and a block must be at least a pixel.
        if columns < 1 or rows <= columns // 2 + 1 or rows > size[0] or columns > size[1]:
            raise ValueError(f"a board of {rows}x{columns} on an image of {size[0]}x{size[1]} cannot be played")
        self.optimum = 1.0
        self.chance = 2 / columns - 1  # the ball's column is uniform, wherever a paddle that cannot see it ends up
        self._rng = np.random.default_rng(seed)
        self._image = image
        self._size = size
        self._rows, self._columns = rows, columns
        self._ball = (0, 0)
        self._paddle = 0
        self._done = True
        shown = Space(np.uint8, (*size, 1)) if image else Space(np.float32, (rows * columns,), 0.0, 1.0)
        self.obs_space = {
            "image" if image else "vector": shown,
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        self.act_space = {"action": Space(np.int32, (), 0, 3), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["reset"] or self._done:
            self._ball = (0, int(self._rng.integers(self._columns)))
            self._paddle = self._columns // 2
            self._done = False
            return self._observe(0.0, first=True)
        self._paddle = min(max(self._paddle + int(action["action"]) - 1, 0), self._columns - 1)
        row, column = self._ball
        self._ball = (row + 1, column)
        self._done = row + 1 == self._rows - 1
        reward = (1.0 if column == self._paddle else -1.0) if self._done else 0.0
        return self._observe(reward)

    def close(self) -> None:
        pass

    def _observe(self, reward: float, first: bool = False) -> dict[str, Any]:
        shown = {"image": self._draw()} if self._image else {"vector": self._board().ravel()}
        return {
            **shown,
            "reward": np.float32(reward),
            "is_first": np.bool_(first),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(self._done),
        }

    def _board(self) -> np.ndarray:
        board = np.zeros((self._rows, self._columns), np.float32)
        board[self._ball] = 1.0
        board[self._rows - 1, self._paddle] = 1.0
        return board

    def _draw(self) -> np.ndarray:
        """Blocks of whole pixels; what is left of the image at the right and the bottom stays black."""
        image = np.zeros((*self._size, 1), np.uint8)
        high, wide = self._size[0] // self._rows, self._size[1] // self._columns
        for row, column in (self._ball, (self._rows - 1, self._paddle)):
            image[row * high : (row + 1) * high, column * wide : (column + 1) * wide] = 255
        return image
