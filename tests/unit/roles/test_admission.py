"""What the actor accepts from env workers, by requests as they arrive."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dreamfleet.agent.checks import finite
from dreamfleet.agent.random_agent import RandomAgent
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import DreamfleetError, EnvError, NotNow, ProtocolError, Refused, SpaceMismatch
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.spaces import Space
from dreamfleet.roles.admission import (
    MAX_HELD,
    MAX_PENDING_BYTES,
    MAX_REFUSED,
    MIN_FRAME_BYTES,
    Admission,
    PendingMetrics,
)
from dreamfleet.transport.codec import REQUEST, Message, decode, encode, pack_json
from dreamfleet.transport.layout import MAX_DESCRIPTOR_BYTES
from dreamfleet.transport.sockets import MAX_FRAME_BYTES
from support.fakes import SummingAgent, make_context

SPACES = {
    "image": Space(np.uint8, (4, 4, 3)),
    "speed": Space(np.float32, (2,), -1.0, 1.0),
    "place": Space(np.float32, (2,)),
    "gear": Space(np.int32, (), 0, 5),
    "reward": Space(np.float32),
    "is_first": Space(bool),
    "is_last": Space(bool),
    "is_terminal": Space(bool),
}
FIGURES: dict[str, Any] = {
    "worker": "a",
    "mode": "train",
    "restarts": 0,
    "steps": 10,
    "step_ms": 1.0,
    "slowest_ms": 0.5,
    "elapsed_s": 1.0,
    "logs": {"log/height/avg": [1.5, 2]},
    "usage": {"cpu_percent": 1.0},
}


def rows(count: int = 2, **changes: Any) -> Arrays:
    arrays = {key: np.zeros((count, *space.shape), space.dtype) for key, space in SPACES.items()}
    own = {"slot": np.ones(count, np.int32), "stream": np.ones(count, np.int64), "is_eval": np.zeros(count, bool)}
    return {**own, **arrays, **changes}


def without(key: str) -> Arrays:
    return {name: array for name, array in rows().items() if name != key}


def introduction(*envs: int, stream: int = -1) -> Arrays:
    return {"env": np.array(envs, np.int32), "stream": np.full(len(envs), stream, np.int64)}


def set_byte(count: int = 2) -> np.ndarray:
    return np.full(count, 7, np.uint8).view(bool)


class Gate:
    """An admission and the worker that asks for it."""

    def __init__(self, agent: Any = None, **args: Any) -> None:
        self.context, self.report = make_context("actor")
        self.left: list[int] = []
        agent = agent or RandomAgent({}, row_space=SPACES)
        flat = FleetArgs(**{"actor_batch": 4, **args})
        self.admission = Admission(agent, flat, self.context, lambda streams: self.left.extend(streams.tolist()))

    def __call__(self, method: str, arrays: Arrays, peer: bytes = b"worker", limited: bool = False) -> None:
        first, *large = [bytes(memoryview(frame).cast("B")) for frame in encode(REQUEST, 1, method, arrays)]
        request = decode(first, large)
        assert isinstance(request, Message)
        request.peer, request.limited = peer, limited
        self.admission(request)

    def refusals(self) -> int:
        return self.admission.status()["messages"]


@pytest.mark.parametrize("method", ["act", "act_eval"])
def test_rows_that_fit_the_agents_spaces_are_accepted(method: str) -> None:
    gate = Gate()
    for count in (1, 4, 1):
        gate(method, rows(count))
    bounds = {"speed": np.full((1, 2), -1.0, np.float32), "gear": np.full(1, 4, np.int32)}
    gate(method, rows(1, **bounds, place=np.full((1, 2), np.inf, np.float32)))
    assert gate.refusals() == 0


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        (without("image"), r"lack \['image'\]"),
        (without("reward"), r"lack \['reward'\]"),
        (without("is_eval"), r"lack \['is_eval'\]"),
        (rows(image=np.zeros((2, 8, 8, 3), np.uint8)), r"'image' as uint8\[8, 8, 3\] instead of uint8\[4, 4, 3\]"),
        (rows(speed=np.zeros((2, 2), np.float64)), "'speed' as float64"),
        (rows(slot=np.zeros(2, np.int64)), "'slot' as int64"),
        (rows(depth=np.zeros(2)), "besides the agent's observations, rows have .depth.: .* instead of nothing"),
        (rows(place=np.array([[0, 0], [0, np.nan]], np.float32)), "'place' has NaN at .1. in row 1"),
        (rows(speed=np.full((2, 2), 1.5, np.float32)), "value 1.5 at .0. above 1"),
        (rows(gear=np.array([0, 5], np.int32)), "value 5 above 4 in row 1"),
        (rows(gear=np.array([-1, 0], np.int32)), "value -1 below 0 in row 0"),
        (rows(reward=np.array([0, np.inf], np.float32)), "not finite"),
        (rows(reward=np.array([np.nan, 0], np.float32)), "'reward' has NaN"),
        (rows(is_last=set_byte()), "flags have bytes that are neither true nor false"),
        (rows(is_eval=set_byte()), "flags have bytes"),
    ],
)
def test_other_rows_are_refused_with_what_is_wrong(arrays: Arrays, error: str) -> None:
    gate = Gate()
    with pytest.raises(SpaceMismatch, match=error):
        gate("act", arrays)
    gate("act", rows())
    assert gate.refusals() == 1


def test_the_first_worker_does_not_decide_the_layout() -> None:
    gate = Gate()
    with pytest.raises(SpaceMismatch):
        gate("act", rows(image=np.zeros((2, 8, 8, 3), np.uint8)), b"first")
    gate("act", rows(), b"second")


def test_more_rows_than_a_batch_has_are_refused() -> None:
    with pytest.raises(ProtocolError, match="5 rows, at most 4"):
        Gate()("act", rows(5))


def test_rows_for_an_agent_without_spaces_are_held_to_what_is_known() -> None:
    gate = Gate(SummingAgent())
    gate("join", introduction(0))
    gate("act", rows())
    infinite = rows(place=np.full((2, 2), np.inf, np.float32))
    not_finite = rows(reward=np.full(2, np.nan, np.float32))
    for wrong in (infinite, not_finite, rows(is_first=np.zeros(2)), rows(speed=np.zeros(2))):
        with pytest.raises(SpaceMismatch):
            gate("act", wrong)


def test_an_agent_that_tells_a_part_of_its_spaces_gets_the_other_keys_too() -> None:
    agent: Any = SummingAgent()
    agent.obs_space = {"image": SPACES["image"], "place": SPACES["place"]}
    gate = Gate(agent)
    gate("join", introduction(0))
    for wrong in (without("image"), rows(place=np.full((2, 2), np.inf, np.float32))):
        with pytest.raises(SpaceMismatch):
            gate("act", wrong)
    gate("act", rows())


def test_the_fleets_own_environments_decide_what_an_agent_without_spaces_gets() -> None:
    gate = Gate(SummingAgent())
    gate("join", introduction(-1), b"guest", limited=True)
    for peer in (b"guest", b"stranger"):
        with pytest.raises(NotNow, match="its own fleet"):
            gate("act", rows(depth=np.zeros(2)), peer)
    gate("join", introduction(0), b"own")
    gate("act", rows(), b"own")
    with pytest.raises(SpaceMismatch, match="depth"):
        gate("act", rows(depth=np.zeros(2)), b"guest")
    gate("act", rows(1), b"guest")
    assert gate.refusals() == 1, "to come early is no mistake"


def test_in_a_fleet_of_remote_environments_the_first_of_them_decides() -> None:
    gate = Gate(SummingAgent(), remote_envs=True)
    gate("join", introduction(0), limited=True)
    gate("act", rows())
    assert gate.refusals() == 0


def test_a_frame_may_hold_all_small_arrays_of_a_step_together() -> None:
    spaces = {**SPACES, **{f"part{number}": Space(np.float32, (1000,)) for number in range(30)}}
    check = Gate(RandomAgent({}, row_space=spaces), actor_batch=64).admission.rows
    arrays = {key: np.zeros((64, *space.shape), space.dtype) for key, space in check._spaces.items()}
    frames = encode(REQUEST, 1, "act", arrays)
    assert max(map(len, frames)) > 7_000_000
    assert check.frame_bytes() >= max(map(len, frames))


def test_a_worker_whose_step_is_larger_than_what_may_wait_is_refused_when_it_joins() -> None:
    spaces = {**SPACES, "image": Space(np.uint8, (210, 160, 3))}
    gate = Gate(RandomAgent({}, row_space=spaces))
    with pytest.raises(EnvError, match=r"one step of 400 environments is 38 MiB, .* 32 MiB .* start several workers"):
        gate("join", introduction(*range(400)))
    gate("join", introduction(*range(200)), b"another")
    Gate(RandomAgent({}, row_space=spaces), envs=400)("join", introduction(*range(400)))


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"env": np.zeros(1, np.int32)},
        {"env": np.zeros(1), "stream": np.zeros(1, np.int64)},
        {"env": np.zeros((1, 1), np.int32), "stream": np.zeros(1, np.int64)},
        {**introduction(0), "more": np.zeros(1)},
        {**introduction(0), "about": np.zeros(1)},
    ],
)
def test_an_introduction_is_two_rows_of_numbers(arrays: Arrays) -> None:
    with pytest.raises(ProtocolError, match="introduction"):
        Gate()("join", arrays)


@pytest.mark.parametrize("about", [b"", b"{", b"[]", b"7", b"{}", b'{"worker": 1}', b" " * 3000])
def test_a_worker_says_who_it_is_in_a_few_words(about: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"who it is|packed JSON"):
        Gate()("join", {**introduction(0), "about": np.frombuffer(about, np.uint8)})


def test_a_worker_may_not_join_with_a_million_environments() -> None:
    with pytest.raises(EnvError, match="at most 1024 environments"):
        Gate()("join", introduction(*range(1025)))
    Gate(envs=2000)("join", introduction(*range(1025)))


def test_a_worker_that_joins_over_and_over_has_to_give_its_streams_back() -> None:
    gate = Gate()
    first = np.arange(1000)
    gate("join", introduction(*range(1000)))
    gate.admission.joined(np.full(1000, -1), first)
    with pytest.raises(EnvError, match="this one has 1000"):
        gate("join", introduction(*range(1000)))
    gate("join", {"env": np.arange(1000, dtype=np.int32), "stream": first})
    gate("join", introduction(*range(1000)), b"another")


def test_frames_are_bounded_by_the_spaces_that_an_agent_tells() -> None:
    told: Any = SummingAgent()
    told.obs_space = {"image": Space(np.uint8, (1024, 1024, 3))}
    small = Gate(told).admission.rows.frame_bytes() - (4 * 3 << 20)  # descriptor, flags and padding beside the images
    assert MAX_DESCRIPTOR_BYTES < small < MAX_DESCRIPTOR_BYTES + 1024
    assert Gate().admission.rows.frame_bytes() == MIN_FRAME_BYTES
    assert Gate(SummingAgent()).admission.rows.frame_bytes() == MAX_FRAME_BYTES


def test_figures_of_a_worker_are_accepted() -> None:
    Gate()("add", {"json": pack_json(FIGURES)})
    Gate()("add", {"json": pack_json({**FIGURES, "usage": {}, "logs": {}, "restarts": 3})})


@pytest.mark.parametrize(
    "figures",
    [
        [],
        None,
        {"metrics": {"step": 1e12}},
        {**FIGURES, "worker": None},
        {**FIGURES, "metrics": {"loss": 1.0}},
        {**FIGURES, "prefix": "train"},
        {**FIGURES, "mode": "other"},
        {**FIGURES, "mode": []},
        {**FIGURES, "steps": 1.5},
        {**FIGURES, "steps": -1},
        {**FIGURES, "restarts": True},
        {**FIGURES, "step_ms": float("nan")},
        {**FIGURES, "elapsed_s": 10**400},
        {**FIGURES, "usage": []},
        {**FIGURES, "usage": {"cpu_percent": "much"}},
        {**FIGURES, "logs": {"log/a": 1.0}},
        {**FIGURES, "logs": {"log/a": [1.0, 0]}},
        {**FIGURES, "logs": {"log/a": [{}, 1]}},
        {**FIGURES, "logs": [["log/a", 1.0]]},
    ],
)
def test_other_figures_are_refused(figures: Any) -> None:
    with pytest.raises(ProtocolError, match="figures"):
        Gate()("add", {"json": pack_json(figures)})


@pytest.mark.parametrize(
    "arrays",
    [
        {"json": np.frombuffer(b'{"worker": ', np.uint8)},
        {"json": np.zeros(3)},
        {"json": pack_json(FIGURES), "more": np.zeros(1)},
        {"json": pack_json({**FIGURES, "logs": {f"log/{number}": [1.0, 1] for number in range(5000)}})},
        {},
    ],
)
def test_figures_are_one_json_text_of_a_moderate_size(arrays: Arrays) -> None:
    with pytest.raises(ProtocolError):
        Gate()("add", arrays)


def test_a_worker_is_shown_once_and_set_aside_after_a_few_messages() -> None:
    gate = Gate()
    gate("join", introduction(0, 1))
    gate.admission.joined(np.full(2, -1), np.array([11, 12]))
    for number in range(MAX_REFUSED + 1):
        assert gate.left == []
        with pytest.raises(SpaceMismatch):
            gate("act", without("image"))
        assert gate.refusals() == number + 1
    assert gate.left == [11, 12]
    for method, arrays in {"act": rows(), "join": introduction(0), "add": {}}.items():
        with pytest.raises(Refused, match="did not fit the run"):
            gate(method, arrays)
    gate("act", rows(), b"another")
    assert gate.report.event_names() == ["refused", "warning", "set_aside"]
    (detail,) = [detail for name, detail in gate.report.events if name == "refused"]
    assert (detail["worker"], detail["method"], detail["envs"]) == (b"worker".hex(), "act", 2)
    assert gate.admission.status() == {"messages": MAX_REFUSED + 1, "workers_aside": 1}


def test_many_workers_do_not_flood_the_terminal() -> None:
    gate = Gate()
    for number in range(100):
        with pytest.raises(DreamfleetError):
            gate("act", without("image"), b"%d" % number)
    assert gate.report.event_names().count("warning") == 20
    assert gate.report.event_names().count("refused") == 20


def test_reasons_are_short_and_printable() -> None:
    gate = Gate()
    names = {f"\x1b[31m{number}" + "k" * 100: np.zeros(2) for number in range(50)}
    with pytest.raises(SpaceMismatch):
        gate("act", rows(**names))
    (refused, warning) = [detail for _, detail in gate.report.events]
    for text in (refused["reason"], warning["text"]):
        assert len(text) < 400
        assert text.isprintable()


def test_streams_of_connections_that_are_gone_are_forgotten() -> None:
    gate = Gate()
    for number in range(100):
        gate("join", introduction(*range(1000)), b"%d" % number)
        gate.admission.joined(np.full(1000, -1), np.arange(1000 * number, 1000 * (number + 1)))
    assert sum(len(peer.streams) for peer in gate.admission._peers.values()) <= MAX_HELD
    with pytest.raises(EnvError, match="this one has 1000"):
        gate("join", introduction(*range(1000)), b"99")


def test_kept_figures_are_bounded_for_each_worker() -> None:
    kept = PendingMetrics()
    large = np.zeros(MAX_PENDING_BYTES // 4, np.uint8)
    for _ in range(10):
        kept.add(b"greedy", large)
    kept.add(b"modest", np.ones(3, np.uint8))
    taken = [kept.take() for _ in range(5)]
    assert [len(part) for part in taken if part is not None] == [len(large)] * 4 + [3]
    assert kept.take() is None
    kept.add(b"greedy", large)
    assert kept.take() is not None


def test_kept_figures_do_not_keep_the_message_they_came_with() -> None:
    kept = PendingMetrics()
    kept.add(b"worker", np.zeros(1 << 20, np.uint8)[:10])
    taken = kept.take()
    assert taken is not None and taken.base is None


def test_dreamer_takes_no_infinity() -> None:
    """It would make the loss one, and end the run as diverged."""
    gate = Gate(RandomAgent({}, row_space=finite({**SPACES, "log/height": Space(np.float32)})))
    gate("act", rows())
    with pytest.raises(SpaceMismatch, match="'place' has value inf"):
        gate("act", rows(place=np.full((2, 2), np.inf, np.float32)))


def test_keys_of_bfloat16_take_no_infinity_either() -> None:
    agent: Any = SummingAgent()
    agent.obs_space = {"place": Space(ml_dtypes.bfloat16, (2,))}
    gate = Gate(agent)
    gate("join", introduction(0))
    place = np.zeros((2, 2), ml_dtypes.bfloat16)
    gate("act", rows(place=place))
    place[1, 0] = np.inf
    with pytest.raises(SpaceMismatch, match="'place' has value inf"):
        gate("act", rows(place=place))


def test_a_bounded_reward_is_held_to_its_bounds() -> None:
    gate = Gate(RandomAgent({}, row_space={**SPACES, "reward": Space(np.float32, (), 0.0, 1.0)}))
    gate("act", rows())
    with pytest.raises(SpaceMismatch, match=r"value 2\.0 above 1"):
        gate("act", rows(reward=np.full(2, 2.0, np.float32)))
