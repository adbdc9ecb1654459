from __future__ import annotations

import pytest

from dreamfleet.core.errors import DeadlineExceeded
from dreamfleet.transport.client import Client
from dreamfleet.transport.clock import RemoteBoard, serve_clock
from dreamfleet.transport.server import Server


class FakeBoard:
    def decided(self, name: str, index: int, timeout_s: float) -> tuple[int, list[int]]:
        if name == "late":
            raise DeadlineExceeded(f"clock {name} was not decided within {timeout_s:g} s")
        return index + 3, [index, index + 2]


def test_a_remote_board_answers_like_the_board_it_stands_for(address: str) -> None:
    server = Server(address, name="clock")
    serve_clock(server, FakeBoard())
    with server, Client(address, name="replica-1") as client:
        board = RemoteBoard(client)
        assert board.decided("log", 5, 1.0) == (8, [5, 7])
        with pytest.raises(DeadlineExceeded, match=r"clock late was not decided within 0\.5 s"):
            board.decided("late", 0, 0.5)
