"""The order and the time limits of a stop, by a clock the test moves."""

from __future__ import annotations

from dataclasses import dataclass

from dreamfleet.launch.stopping import StopSequence


@dataclass(eq=False)
class Role:
    name: str
    stop_rank: int
    alive: bool = True
    asked: int = 0

    def request_stop(self) -> None:
        self.asked += 1


def make_roles(*ranks: int) -> list[Role]:
    return [Role(f"{rank}{index}", rank) for index, rank in enumerate(ranks)]


def test_the_next_rank_is_asked_when_the_one_before_is_gone() -> None:
    roles = make_roles(2, 0, 1, 0)
    stop = StopSequence(roles, 10.0, now=0.0)
    assert stop.advance(0.0) == []
    assert [role.asked for role in roles] == [0, 1, 0, 1]
    roles[1].alive = False
    stop.advance(0.1)
    assert [role.asked for role in roles] == [0, 1, 0, 1]
    roles[3].alive = False
    stop.advance(0.2)
    assert [role.asked for role in roles] == [0, 1, 1, 1]
    roles[2].alive = False
    stop.advance(0.3)
    assert [role.asked for role in roles] == [1, 1, 1, 1]


def test_every_rank_gets_its_share_of_nine_tenths_of_the_time() -> None:
    first, second, third = roles = make_roles(0, 1, 2)
    stop = StopSequence(roles, 10.0, now=100.0)
    assert stop.advance(100.0) == []
    assert stop.deadline() == 103.0
    assert stop.advance(102.9) == []
    assert stop.advance(103.0) == [first]
    assert second.asked == 1
    assert stop.deadline() == 106.0
    assert stop.advance(106.0) == [first, second]
    first.alive = second.alive = False
    assert stop.advance(108.9) == []
    assert stop.advance(109.0) == [third]
    assert stop.deadline() == stop.give_up_at == 110.0


def test_time_a_rank_does_not_need_goes_to_the_next() -> None:
    first, second = make_roles(0, 1)
    stop = StopSequence([first, second], 10.0, now=0.0)
    stop.advance(0.0)
    assert stop.deadline() == 4.5
    first.alive = False
    stop.advance(1.0)
    assert stop.deadline() == 9.0


def test_roles_that_are_gone_already_take_no_time() -> None:
    gone, there = make_roles(0, 1)
    gone.alive = False
    stop = StopSequence([gone, there], 10.0, now=0.0)
    stop.advance(0.0)
    assert (gone.asked, there.asked) == (0, 1)
    assert stop.deadline() == 9.0


def test_nobody_is_left_out_when_no_time_is_given() -> None:
    roles = make_roles(0, 1)
    assert StopSequence(roles, 0.0, now=5.0).advance(5.0) == roles
    assert [role.asked for role in roles] == [1, 1]
