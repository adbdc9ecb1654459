"""Slots, streams and the carries kept by slot."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import EnvError, NotNow
from dreamfleet.roles.slots import PADDING_SLOT, CarryTable, SlotTable, num_local_envs, protected_envs

SILENT_S = 60.0
NO_STREAM = -1


@pytest.fixture
def table(manual_time) -> SlotTable:
    return SlotTable(SILENT_S, now=manual_time)


def join(table: SlotTable, *envs: int, old: list[int] | None = None) -> tuple[list[int], list[int], list[int]]:
    slots, streams, numbers = table.join(np.array(envs, np.int32), np.array(old or [NO_STREAM] * len(envs), np.int64))
    return slots.tolist(), streams.tolist(), numbers.tolist()


def known(table: SlotTable, slots: list[int], streams: list[int]) -> list[bool]:
    return table.known(np.array(slots, np.int32), np.array(streams, np.int64)).tolist()


def test_everyone_who_joins_gets_a_slot_and_a_stream_of_their_own(table) -> None:
    first, second = join(table, 0, 1, 2), join(table, 3, 4)
    slots, streams = first[0] + second[0], first[1] + second[1]
    assert len(set(slots)) == len(set(streams)) == 5
    assert PADDING_SLOT not in slots
    assert first[2] + second[2] == [0, 1, 2, 3, 4]
    assert known(table, slots, streams) == [True] * 5


def test_the_table_grows_and_keeps_who_is_in_it(table) -> None:
    joined = [join(table, index) for index in range(100)]
    slots, streams = [entry[0][0] for entry in joined], [entry[1][0] for entry in joined]
    assert len(set(slots)) == len(set(streams)) == 100
    assert known(table, slots, streams) == [True] * 100
    assert table.envs[slots].tolist() == list(range(100))


def test_streams_of_a_later_table_are_new(table) -> None:
    _, earlier, _ = join(table, *range(10))
    _, later, _ = join(SlotTable(SILENT_S), *range(10))
    assert not set(earlier) & set(later)


def test_streams_are_new_though_the_clock_was_set_back(monkeypatch) -> None:
    seen: set[int] = set()
    for now in (2_000_000_000, 1_999_999_999.9999, 0, 2_000_000_000):
        monkeypatch.setattr("time.time_ns", lambda now=now: int(now * 1e9))
        monkeypatch.setattr("time.time", lambda now=now: now)
        _, streams, _ = join(SlotTable(SILENT_S), *range(200))
        assert not seen & set(streams)
        assert min(streams) >= 0
        seen.update(streams)


def test_rejoining_frees_the_old_slot_and_starts_a_new_stream(table) -> None:
    slots, streams, _ = join(table, 0, 1)
    size = len(table)
    for _ in range(50):
        old_slots, old_streams = slots, streams
        slots, streams, _ = join(table, 0, 1, old=old_streams)
        assert not set(streams) & set(old_streams)
        assert known(table, old_slots, old_streams) == [False, False]
        assert known(table, slots, streams) == [True, True]
    assert len(table) == size


def test_rejoining_leaves_the_others_alone(table) -> None:
    slots, streams, _ = join(table, 0, 1, 2)
    join(table, 1, old=[streams[1]])
    assert known(table, slots, streams) == [True, False, True]


def test_a_slot_is_used_again_after_silence_and_only_when_needed(table, manual_time) -> None:
    slots, streams, _ = join(table, 0, 1)
    assert len(table) == 3  # the scratch slot and those two: no room left
    manual_time.advance(SILENT_S + 1)
    table.mark_seen(np.array(slots[:1]))
    newcomer, _, _ = join(table, 2)
    assert newcomer == slots[1:]
    assert known(table, slots, streams) == [True, False]
    assert len(table) == 3


def test_workers_that_die_over_and_over_do_not_make_the_table_grow(table, manual_time) -> None:
    others = join(table, 1, 2, 3)
    join(table, 0)
    size = len(table)
    for _ in range(20):
        manual_time.advance(1.5)
        table.mark_seen(np.array(others[0]))
        slots, streams, _ = join(table, 0)
        assert known(table, slots, streams) == [True]
    assert len(table) <= 2 * size
    assert known(table, others[0], others[1]) == [True] * 3


def test_silence_alone_does_not_cost_the_slot(table, manual_time) -> None:
    slots, streams, _ = join(table, 0)
    manual_time.advance(10 * SILENT_S)
    assert known(table, slots, streams) == [True]


@pytest.mark.parametrize(("slot", "stream"), [(PADDING_SLOT, -1), (-1, -1), (1, -1), (1, 12345), (10**6, 0), (-1, 0)])
def test_rows_that_name_a_wrong_slot_or_stream_are_unknown(table, slot: int, stream: int) -> None:
    join(table, 0)
    assert known(table, [slot], [stream]) == [False]


def test_a_slot_that_does_not_exist_is_unknown_whatever_stream_it_names(table) -> None:
    slots, streams, _ = table.join(np.array([0, 1]), np.array([-1, -1]))
    last = max(slots)
    assert len(table) == last + 1
    beyond = [int(last) + 1, 2**31 - 1, -1, -(2**31)]
    for stream in streams.tolist():
        assert known(table, beyond, [stream] * len(beyond)) == [False] * len(beyond)


def test_a_row_with_somebody_elses_slot_is_unknown(table) -> None:
    slots, streams, _ = join(table, 0, 1)
    assert known(table, slots[::-1], streams) == [False, False]


def test_environments_without_a_number_get_one_that_nobody_else_has(manual_time) -> None:
    table = SlotTable(SILENT_S, reserved=4, now=manual_time)
    assert join(table, -1, -1)[2] == [4, 5]  # even when they come before the fleet's own
    assert join(table, 0, 1, 2, 3)[2] == [0, 1, 2, 3]
    assert join(table, 9, -1, -1, -1, -1)[2] == [9, 6, 7, 8, 10]


def test_live_counts_those_heard_of_lately(table, manual_time) -> None:
    assert table.live(5) == 0
    slots, _, _ = join(table, 0, 1, 2)
    assert table.live(5) == 3
    manual_time.advance(6)
    table.mark_seen(np.array(slots[:1]))
    assert table.live(5) == 1


def test_guests_are_those_beyond_the_fleets_own_and_stay_so_when_they_join_again(manual_time) -> None:
    table = SlotTable(SILENT_S, reserved=2, num_local=2, now=manual_time)
    join(table, 0, 1)
    assert table.live(5, remote=True) == 0
    _, streams, numbers = join(table, -1, -1)
    assert table.live(5, remote=True) == 2
    slots, _, _ = join(table, *numbers, old=streams)
    assert (table.live(5), table.live(5, remote=True)) == (4, 2)
    table.release(np.array(slots))
    assert (table.live(5), table.live(5, remote=True)) == (2, 0)


def test_in_a_fleet_without_own_environments_numbered_ones_are_guests_too(manual_time) -> None:
    args = FleetArgs(envs=2, eval_envs=4, remote_envs=True)
    table = SlotTable(SILENT_S, reserved=4, num_local=num_local_envs(args), now=manual_time)
    join(table, 0, 1)
    assert join(table, -1)[2] == [4]
    assert table.live(5, remote=True) == 3
    assert num_local_envs(FleetArgs(envs=2, eval_envs=4)) == 4
    assert protected_envs(FleetArgs(envs=2, eval_envs=4), by_hand=False) == 6
    assert protected_envs(args, by_hand=False) == protected_envs(FleetArgs(), by_hand=True) == 0


def test_an_absurd_environment_number_is_refused(table) -> None:
    with pytest.raises(EnvError, match="environment 1048576 cannot join: numbers go up to 1048575"):
        join(table, 0, 2**20)
    assert table.live(5) == 0
    join(table, 2**20 - 1)


OWN = 4  # environments that the fleet itself starts, of each kind


@pytest.fixture
def fleet_table(manual_time) -> SlotTable:
    return SlotTable(SILENT_S, reserved=OWN, num_local=OWN, protected=2 * OWN, now=manual_time)


def join_limited(table: SlotTable, *envs: int, old: list[int] | None = None) -> tuple[list[int], list[int], list[int]]:
    """With the key of a worker."""
    old_streams = np.array(old or [NO_STREAM] * len(envs), np.int64)
    slots, streams, numbers = table.join(np.array(envs, np.int32), old_streams, limited=True)
    return slots.tolist(), streams.tolist(), numbers.tolist()


def fill(table: SlotTable) -> int:
    """Join with a worker's key until there is no room; how many got a place."""
    joined = 0
    for size in (1024, 1):
        with contextlib.suppress(NotNow):
            while True:
                join_limited(table, *[-1] * size)
                joined += size
    return joined


def test_a_workers_key_cannot_take_the_slots_of_the_fleets_own_environments(fleet_table, manual_time) -> None:
    slots, streams, _ = join(fleet_table, *range(OWN))
    assert fill(fleet_table) > 8000
    for silence_s in (1.5, SILENT_S + 1):  # the learner holds everybody back
        manual_time.advance(silence_s)
        with contextlib.suppress(NotNow):
            join_limited(fleet_table, *range(1024))
        assert known(fleet_table, slots, streams) == [True] * OWN


def test_the_fleets_own_environments_find_room_in_a_table_that_others_have_filled(fleet_table, manual_time) -> None:
    fill(fleet_table)
    train, evaluation = join(fleet_table, *range(OWN)), join(fleet_table, *range(OWN))
    assert known(fleet_table, train[0] + evaluation[0], train[1] + evaluation[1]) == [True] * 2 * OWN
    assert len(fleet_table) <= 8192
    train = join(fleet_table, *range(OWN), old=train[1])
    assert train[2] == list(range(OWN))
    manual_time.advance(1.5)  # their worker was killed, and kept its slots
    fleet_table.mark_seen(np.array(evaluation[0]))
    assert join(fleet_table, *range(OWN))[2] == list(range(OWN))


def test_who_has_a_workers_key_is_numbered_beyond_the_fleets_own(fleet_table) -> None:
    _, streams, numbers = join_limited(fleet_table, 0, 3, -1)
    assert numbers == [4, 5, 6]
    assert fleet_table.live(5, remote=True) == 3
    assert join_limited(fleet_table, *numbers, old=streams)[2] == numbers
    assert join_limited(fleet_table, 5, 5, 7)[2] == [8, 9, 7], "a number in use goes to nobody else"


def test_no_room_for_a_worker_is_room_again_when_others_were_silent(fleet_table, manual_time) -> None:
    own = join(fleet_table, *range(OWN))
    fill(fleet_table)
    with pytest.raises(NotNow, match="room for 8192"):
        join_limited(fleet_table, -1)
    manual_time.advance(SILENT_S + 1)
    slots, streams, _ = join_limited(fleet_table, -1)
    assert known(fleet_table, slots + own[0], streams + own[1]) == [True] * (1 + OWN)


def test_the_largest_number_does_not_use_up_all_others(table) -> None:
    join(table, 2**20 - 1)
    _, streams, numbers = join(table, -1, -1)
    assert numbers == [0, 1]
    assert join(table, *numbers, old=streams)[2] == numbers
    table._next_env = 2**20 - 1
    assert join(table, -1, -1)[2] == [2, 3], "after the last one comes the first that is free"


def test_where_all_environments_are_remote_they_keep_their_numbers(manual_time) -> None:
    table = SlotTable(SILENT_S, reserved=4, now=manual_time)
    assert join_limited(table, 0, 1, 2, 3)[2] == [0, 1, 2, 3]


def make_carries() -> CarryTable:
    return CarryTable(lambda n: {"a": np.zeros((n, 2)), "b": (np.zeros(n, np.int32),)})


def carry_of(*values: int) -> dict:
    return {"a": np.array([[v, -v] for v in values], float), "b": (np.array(values, np.int32),)}


def test_a_carry_comes_back_to_the_slot_it_was_put_for() -> None:
    table = make_carries()
    table.take(np.array([1, 2, 3]), 4)
    table.put(np.array([1, 2, 3]), carry_of(10, 20, 30))
    table.put(np.array([2]), carry_of(21))
    taken = table.take(np.array([3, 2, 1]), 4)
    assert taken["a"].tolist() == [[30, -30], [21, -21], [10, -10]]
    assert taken["b"][0].tolist() == [30, 21, 10]


def test_new_slots_start_from_the_initial_carry_and_old_ones_stay() -> None:
    table = make_carries()
    table.take(np.array([1]), 2)
    table.put(np.array([1]), carry_of(10))
    assert table.take(np.array([1, 4]), 5)["b"][0].tolist() == [10, 0]


def test_what_was_taken_does_not_change_with_the_table() -> None:
    table = make_carries()
    taken = table.take(np.array([1]), 2)
    table.put(np.array([1]), carry_of(10))
    assert taken["a"].tolist() == [[0, 0]]


def test_padding_rows_change_nothing_but_the_scratch_slot() -> None:
    table = make_carries()
    table.take(np.array([1, 2]), 3)
    table.put(np.array([1, 2]), carry_of(10, 20))
    table.put(np.array([2, PADDING_SLOT, PADDING_SLOT]), carry_of(22, 98, 99))
    assert table.take(np.array([1, 2]), 3)["b"][0].tolist() == [10, 22]


def test_an_agent_without_a_carry_has_an_empty_table() -> None:
    table = CarryTable(lambda n: {})
    assert table.take(np.array([1, 2]), 3) == {}
    table.put(np.array([1, 2]), {})


def test_nobody_can_work_out_the_stream_of_another_worker(table) -> None:
    _, streams, _ = join(table, *range(100))
    gaps = np.diff(np.sort(np.array(streams)))
    assert gaps.min() > 1e6
    assert (np.diff(streams) < 0).any(), "they are in no order"


def test_of_several_rows_of_one_environment_the_first_counts(table) -> None:
    slots, _, _ = join(table, 0, 1, 2)
    a, b, c = slots
    rows = np.array([b, a, b, c, a, 999, -1], np.int32)
    known = np.array([True, True, True, False, True, False, False])
    assert table.first_of_each(rows, known).tolist() == [True, True, False, False, False, False, False]
    assert table.first_of_each(rows[2:], known[2:]).tolist() == [True, False, True, False, False]


def test_the_table_does_not_grow_without_end(table) -> None:
    for _ in range(8):
        join(table, *[-1] * 1000)
    with pytest.raises(EnvError, match="room for 8192, set run"):
        join(table, *[-1] * 1000)
    join(table, *[-1] * 100)
    assert len(table) <= 8192
