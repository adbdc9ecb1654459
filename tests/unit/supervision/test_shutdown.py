"""The order and the time limits of a stop, by a clock the test moves."""

from __future__ import annotations

from dataclasses import dataclass

from dreamfleet.supervision.shutdown import StopSequence


@dataclass(eq=False)
class Role:
    name: str
    stop_rank: int
    saves: bool = False
    alive: bool = True
    asked: int = 0

    def request_stop(self) -> None:
        self.asked += 1


def make_roles(*ranks: int) -> list[Role]:
    return [Role(f"{rank}{index}", rank) for index, rank in enumerate(ranks)]


def test_the_next_rank_is_asked_when_the_one_before_is_gone() -> None:
    roles = make_roles(2, 0, 1, 0)
    stop = StopSequence(roles, 10.0, 60.0, now=0.0)
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


def test_in_a_clean_stop_every_rank_has_the_whole_time_and_one_that_saves_has_more() -> None:
    first, saver, third = roles = make_roles(0, 1, 2)
    saver.saves = True
    stop = StopSequence(roles, 10.0, 60.0, now=100.0)
    assert stop.advance(100.0) == []
    assert stop.deadline() == 110.0
    assert stop.advance(110.0) == [first]
    first.alive = False
    assert stop.deadline() == 170.0
    assert stop.advance(169.0) == []
    saver.alive = False
    assert stop.advance(169.5) == []
    assert stop.deadline() == 179.5
    assert stop.advance(179.5) == [third]
    assert stop.deadline() == stop.give_up_at == 180.5


def test_after_a_failure_every_rank_gets_its_share_of_nine_tenths_of_the_time() -> None:
    first, second, third = roles = make_roles(0, 1, 2)
    second.saves = True
    stop = StopSequence(roles, 10.0, 60.0, now=100.0)
    stop.hurry(100.0)
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
    stop = StopSequence([first, second], 10.0, 60.0, now=0.0)
    stop.hurry(0.0)
    stop.advance(0.0)
    assert stop.deadline() == 4.5
    first.alive = False
    stop.advance(1.0)
    assert stop.deadline() == 9.0


def test_a_failure_during_a_clean_stop_shortens_it_for_the_rank_that_was_asked_and_for_the_others() -> None:
    saver, last = make_roles(0, 1)
    saver.saves = True
    stop = StopSequence([saver, last], 10.0, 60.0, now=0.0)
    stop.advance(0.0)
    stop.hurry(20.0)
    assert stop.deadline() == 24.5
    assert stop.advance(24.5) == [saver]
    assert stop.deadline() == 29.0
    stop.hurry(28.0)  # a second failure wins no time
    assert stop.advance(29.0) == [saver, last]
    assert stop.give_up_at == 30.0


def test_a_failure_never_gives_a_rank_more_time() -> None:
    roles = make_roles(0)
    stop = StopSequence(roles, 10.0, 60.0, now=0.0)
    stop.advance(0.0)
    stop.hurry(8.0)
    assert stop.deadline() == 10.0


def test_roles_that_are_gone_already_take_no_time() -> None:
    gone, there = make_roles(0, 1)
    gone.alive = False
    stop = StopSequence([gone, there], 10.0, 60.0, now=0.0)
    stop.hurry(0.0)
    stop.advance(0.0)
    assert (gone.asked, there.asked) == (0, 1)
    assert stop.deadline() == 9.0


def test_however_short_the_time_a_killed_role_has_a_second_to_be_gone() -> None:
    failed, clean = (StopSequence(make_roles(0), 1.0, 60.0, now=0.0) for _ in range(2))
    failed.hurry(0.0)
    for stop, killed_at in ((failed, 0.9), (clean, 1.0)):
        stop.advance(0.0)
        assert stop.deadline() == killed_at
        stop.advance(killed_at)
        assert stop.deadline() == stop.give_up_at == killed_at + 1.0


def test_nobody_is_left_out_when_no_time_is_given() -> None:
    roles = make_roles(0, 1)
    assert StopSequence(roles, 0.0, 0.0, now=5.0).advance(5.0) == roles
    assert [role.asked for role in roles] == [1, 1]
