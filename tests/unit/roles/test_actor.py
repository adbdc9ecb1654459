"""The actor's handlers, called the way the batch server calls them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import Disconnected, Stopped
from dreamfleet.core.interfaces import Arrays
from dreamfleet.roles.actor import ActorRole
from dreamfleet.roles.connect import RUN_STEP
from dreamfleet.transport.codec import pack_json
from support.fakes import FakeClient, SummingAgent, make_context
from support.snapshot_parts import commit

WAIT_S = 20.0


class Actor:
    """An actor role with fakes around it."""

    def __init__(self, logdir: Path, agent: SummingAgent | None = None, **args: Any) -> None:
        self.agent = agent or SummingAgent()
        self.replay, self.logger = FakeClient(), FakeClient()
        context, self.report = make_context("actor")
        self.failures: list[BaseException] = []
        flat = FleetArgs(logdir=logdir, **{"log_every": 0, **args})
        self.role = ActorRole(self.agent, flat, self.replay, self.logger, context, self.failures.append)

    def join(self, *envs: int) -> tuple[np.ndarray, np.ndarray]:
        joined = self.role.join({"env": np.array(envs, np.int32), "stream": np.full(len(envs), -1, np.int64)})
        return joined["slot"], joined["stream"]

    def act(self, batch: Arrays, rows: int | None = None, evaluate: bool = False) -> Arrays:
        """Answers the batch and runs the post-function; returns the reply to the valid rows."""
        rows = len(batch["slot"]) if rows is None else rows
        act = self.role.act_eval if evaluate else self.role.act
        after = self.role.after_act_eval if evaluate else self.role.after_act
        result = act(batch, rows)
        after(batch, result, rows)
        return {key: value[:rows] for key, value in result[0].items()}


@pytest.fixture
def actor(tmp_path) -> Actor:
    return Actor(tmp_path)


def make_batch(slots: Any, streams: Any, values: list[float], first: bool = False, **more: np.ndarray) -> Arrays:
    rows = len(values)
    return {
        "slot": np.asarray(slots, np.int32),
        "stream": np.asarray(streams, np.int64),
        "value": np.array(values),
        "reward": np.arange(rows, dtype=np.float32),
        "is_first": np.full(rows, first),
        "is_last": np.zeros(rows, bool),
        "is_terminal": np.zeros(rows, bool),
        "is_eval": np.zeros(rows, bool),
        **more,
    }


def test_every_environment_is_answered_from_its_own_carry_whatever_the_batches(actor) -> None:
    slots, streams = actor.join(0, 1, 2)
    actor.act(make_batch(slots, streams, [1, 10, 100], first=True))
    assert actor.act(make_batch(slots[[2, 0]], streams[[2, 0]], [200, 2]))["action"].tolist() == [300, 3]
    assert actor.act(make_batch(slots[[1]], streams[[1]], [20]))["action"].tolist() == [30]
    assert actor.act(make_batch(slots, streams, [3, 30, 300]))["action"].tolist() == [6, 60, 600]


def test_environments_that_join_later_do_not_disturb_the_others(actor) -> None:
    slots, streams = actor.join(0)
    actor.act(make_batch(slots, streams, [1], first=True))
    more_slots, more_streams = actor.join(*range(1, 10))
    actor.act(make_batch(more_slots, more_streams, [50.0] * 9, first=True))
    assert actor.act(make_batch(slots, streams, [2]))["action"].tolist() == [3]


def test_padding_rows_leave_no_trace(actor) -> None:
    slots, streams = actor.join(0)
    actor.act(make_batch(slots, streams, [1], first=True))
    padded = make_batch([slots[0]] * 4, [streams[0]] * 4, [2, 50, 60, 70])  # rows 1 to 3 are not valid
    assert actor.act(padded, rows=1)["action"].tolist() == [3]
    assert actor.act(make_batch(slots, streams, [3]))["action"].tolist() == [6]
    assert [len(sent["value"]) for sent in actor.replay.sent("add_batch")] == [1, 1, 1]
    assert actor.role.steps == 3


def test_a_transition_holds_the_observation_the_action_and_what_the_policy_gives_out(actor) -> None:
    slots, streams = actor.join(4, 5)
    actor.act(make_batch(slots, streams, [1, 2], first=True))
    (stored,) = actor.replay.sent("add_batch")
    keys = {"stream", "value", "reward", "is_first", "is_last", "is_terminal", "action", "latent"}
    assert stored.keys() == {*keys, RUN_STEP}
    assert stored["stream"].tolist() == streams.tolist()
    assert stored["action"].tolist() == [1, 2]
    assert stored["latent"].tolist() == [10, 20]
    assert stored["value"].tolist() == [1, 2]


def test_the_logger_gets_what_episodes_consist_of_and_nothing_else(actor) -> None:
    slots, streams = actor.join(4, 5)
    actor.act(make_batch(slots, streams, [1, 2], first=True))
    (logged,) = actor.logger.sent("tran")
    assert logged.keys() == {"env", "reward", "is_first", "is_last", RUN_STEP}
    assert logged["env"].tolist() == [4, 5]
    assert logged["reward"].tolist() == [0, 1]


def test_figures_of_workers_go_to_the_logger_with_the_next_steps(actor) -> None:
    """The server's thread takes them in while another thread may be using the logger's client."""
    slots, streams = actor.join(4)
    for number in range(2):
        actor.role.add({"json": pack_json({"worker": number})})
    assert actor.logger.calls == []
    actor.act(make_batch(slots, streams, [1], first=True))
    assert actor.logger.methods() == ["tran", "add", "add"]
    assert [message["worker"] for message in actor.logger.metrics()] == [0, 1]
    actor.act(make_batch(slots, streams, [1]))
    assert actor.logger.methods()[3:] == ["tran"]


def test_neither_slot_nor_stream_reach_the_policy(actor) -> None:
    slots, streams = actor.join(0)
    actor.act(make_batch(slots, streams, [1], first=True))
    assert actor.agent.keys == {"value", "reward", "is_first", "is_last", "is_terminal"}


def test_rows_of_unknown_streams_are_told_so_and_not_passed_on(actor) -> None:
    slots, streams = actor.join(0, 1)
    actor.act(make_batch(slots, streams, [1, 10], first=True))
    batch = make_batch([slots[0], slots[1], 999], [streams[0], streams[1] + 50, 3], [2, 20, 200])
    reply = actor.act(batch)
    assert reply["known"].tolist() == [True, False, False]
    assert reply["action"][0] == 3
    assert actor.replay.sent("add_batch")[1]["value"].tolist() == [2]
    assert actor.logger.sent("tran")[1]["env"].tolist() == [0]
    assert actor.role.steps == 3
    assert actor.act(make_batch(slots[1:], streams[1:], [20]))["action"].tolist() == [30]


def test_nothing_is_sent_when_every_row_is_unknown(actor) -> None:
    actor.act(make_batch([1, 2], [5, 6], [1, 2]))
    assert actor.replay.calls == []
    assert actor.logger.calls == []


def test_eval_environments_have_their_own_carries_replay_and_statistics(actor) -> None:
    slots, streams = actor.join(0, 1)
    actor.act(make_batch(slots[:1], streams[:1], [1], first=True))
    actor.act(make_batch(slots[1:], streams[1:], [10], first=True), evaluate=True)
    assert actor.agent.modes == ["train", "eval"]
    assert actor.replay.methods() == ["add_batch", "add_batch_eval"]
    assert actor.logger.methods() == ["tran", "tran_eval"]
    assert actor.act(make_batch(slots[1:], streams[1:], [20]), evaluate=True)["action"].tolist() == [30]
    assert actor.role.steps == 1


def test_rows_of_both_modes_share_a_call_and_part_after_it(actor) -> None:
    slots, streams = actor.join(0, 1, 2)
    mixed = np.array([False, True, False])
    reply = actor.act(make_batch(slots, streams, [1, 10, 100], first=True, is_eval=mixed))
    assert reply["action"].tolist() == [1, 10, 100]
    assert actor.agent.modes == ["train"]
    sent = dict(zip(actor.replay.methods(), [arrays for _, arrays in actor.replay.calls], strict=True))
    assert {method: arrays["value"].tolist() for method, arrays in sent.items()} == {
        "add_batch_eval": [10],
        "add_batch": [1, 100],
    }
    assert not any({"slot", "is_eval"} & arrays.keys() for arrays in sent.values())
    logged = dict(zip(actor.logger.methods(), [arrays for _, arrays in actor.logger.calls], strict=True))
    assert {method: arrays["env"].tolist() for method, arrays in logged.items()} == {"tran_eval": [1], "tran": [0, 2]}
    assert actor.role.steps == 2
    rates = actor.role.status()["rates"]
    assert rates.keys() >= {"env", "env_eval", "policy"}


def test_neither_rows_that_fill_up_a_batch_nor_unknown_ones_are_passed_on(actor) -> None:
    slots, streams = actor.join(0, 1)
    padded = make_batch(
        [*slots, slots[1], slots[1]],
        [*streams, 12345, streams[1]],
        [1, 10, 11, 12],
        is_eval=np.array([0, 1, 1, 1], bool),
    )
    actor.act(padded, rows=3)
    sent = dict(zip(actor.replay.methods(), [arrays for _, arrays in actor.replay.calls], strict=True))
    assert {method: arrays["value"].tolist() for method, arrays in sent.items()} == {
        "add_batch_eval": [10],
        "add_batch": [1],
    }


def test_a_shared_call_of_evaluation_alone_is_no_step_of_the_run(actor) -> None:
    slots, streams = actor.join(0, 1)
    actor.act(make_batch(slots, streams, [1, 10], first=True, is_eval=np.ones(2, bool)))
    assert actor.replay.methods() == ["add_batch_eval"]
    assert actor.logger.methods() == ["tran_eval"]
    assert actor.role.steps == 0


def test_evaluation_goes_on_in_shared_calls_when_the_budget_is_spent(tmp_path) -> None:
    actor = Actor(tmp_path, steps=1)
    slots, streams = actor.join(0, 1)
    for _ in range(2):
        actor.act(make_batch(slots, streams, [1, 10], is_eval=np.array([False, True])))
    assert actor.replay.methods() == ["add_batch_eval", "add_batch", "add_batch_eval"]
    assert actor.role.steps == 1


def test_the_step_budget_is_reported_once(tmp_path) -> None:
    actor = Actor(tmp_path, steps=5)
    slots, streams = actor.join(0, 1)
    batch = make_batch(slots, streams, [1, 1], first=True)
    for _ in range(3):
        actor.act(batch, evaluate=True)
    finishes = []
    for _ in range(4):
        actor.act(batch)
        finishes.append(list(actor.report.finishes))
    assert finishes == [[], [], ["run.steps=5 reached"], ["run.steps=5 reached"]]


def test_a_run_does_not_end_before_its_last_steps_have_arrived(tmp_path) -> None:
    """The last snapshot is taken when the run ends, and another client asks for it."""
    actor = Actor(tmp_path, steps=4)
    ends_first: list[bool] = []

    def arrive(_: Arrays) -> Arrays:
        ends_first.append(bool(actor.report.finishes))
        return {}

    actor.replay.answers["add_batch"] = actor.logger.answers["tran"] = arrive
    slots, streams = actor.join(0, 1)
    actor.act(make_batch(slots, streams, [1, 1], first=True))
    assert (actor.replay.waits, actor.logger.waits) == ([], [])  # nobody waits in the middle of a run
    actor.act(make_batch(slots, streams, [1, 1]))
    assert len(actor.replay.waits) == len(actor.logger.waits) == 1
    assert ends_first == [False, False]
    assert len(actor.report.finishes) == 1


def test_a_run_goes_on_if_its_last_steps_are_lost(tmp_path) -> None:
    actor = Actor(tmp_path, steps=2)
    errors = [Disconnected("the connection was lost")]

    def lose_once(_: Arrays) -> Arrays:
        if errors:
            raise errors.pop()
        return {}

    actor.replay.answers |= {"add_batch": lose_once, "sizes": lambda _: {"step": np.array(0, np.int64)}}
    for rounds in range(2):
        slots, streams = actor.join(0, 1)
        actor.act(make_batch(slots, streams, [1, 1], first=True))
        assert len(actor.report.finishes) == rounds
    assert actor.role.steps == 2


def test_the_last_steps_are_told_again_to_a_logger_that_comes_back(tmp_path) -> None:
    actor = Actor(tmp_path, steps=2)
    errors = [Disconnected("the connection was lost")]
    told: list[Arrays] = []

    def lose_once(logged: Arrays) -> Arrays:
        if errors:
            raise errors.pop()
        told.append(logged)
        return {}

    actor.logger.answers["tran"] = lose_once
    actor.logger.stats = lambda: {"errors": 1}
    slots, streams = actor.join(0, 1)
    actor.act(make_batch(slots, streams, [1, 1], first=True))
    assert [int(logged[RUN_STEP]) for logged in told] == [2]
    assert actor.replay.methods() == ["add_batch"]
    assert len(actor.report.finishes) == 1


def test_a_continued_run_counts_on_from_its_snapshot(tmp_path) -> None:
    commit(tmp_path, 100, updates=1)
    actor = Actor(tmp_path, steps=102)
    slots, streams = actor.join(0, 1)
    actor.act(make_batch(slots, streams, [1, 1], first=True))
    assert actor.role.steps == 102
    assert len(actor.report.finishes) == 1


def test_rates_and_waits_go_to_the_logger_when_the_clock_says_so(tmp_path) -> None:
    actor = Actor(tmp_path, log_every=-1)
    slots, streams = actor.join(0)
    actor.act(make_batch(slots, streams, [1], first=True))
    (message,) = actor.logger.metrics()
    assert message["metrics"].keys() >= {"fps/env", "fps/policy", "wait/actor/replay_to_accept_steps_s"}


def test_an_environment_that_joins_from_elsewhere_has_a_number_of_its_own(tmp_path) -> None:
    actor = Actor(tmp_path, envs=4, eval_envs=2)
    guest_slots, guest_streams = actor.join(-1)
    slots, streams = actor.join(0)
    actor.act(make_batch([*guest_slots, *slots], [*guest_streams, *streams], [1, 1], first=True))
    assert actor.logger.sent("tran")[0]["env"].tolist() == [4, 0]


def test_an_actor_that_ends_says_so_to_everyone_and_passes_nothing_on(actor) -> None:
    slots, streams = actor.join(0)
    actor.role.end(timeout_s=WAIT_S)  # no guests: nothing to wait for
    with pytest.raises(Stopped, match="the run has ended"):
        actor.act(make_batch(slots, streams, [1], first=True))
    assert actor.agent.modes == []
    assert actor.replay.calls == []


class Starting(SummingAgent):
    """Computes elsewhere, and fails there or on the way."""

    fails = ""

    def start_policy(self, *arguments: Any) -> Any:
        if self.fails == "start":
            raise ValueError("no way there")

        def fetch() -> Any:
            if self.fails == "fetch":
                raise ValueError("no way back")
            return self.policy(*arguments)

        return fetch


@pytest.mark.parametrize(("fails", "words"), [("start", "no way there"), ("fetch", "no way back")])
def test_an_error_where_the_policy_is_computed_is_told_wherever_it_comes_from(tmp_path, fails: str, words: str) -> None:
    agent = Starting()
    actor = Actor(tmp_path, agent)
    slots, streams = actor.join(0)
    actor.act(make_batch(slots, streams, [1], first=True))
    assert actor.act(make_batch(slots, streams, [2]))["action"].tolist() == [3]
    agent.fails = fails
    with pytest.raises(ValueError, match=words):
        actor.act(make_batch(slots, streams, [3]))
    assert [str(error) for error in actor.failures] == [words]


def test_steps_are_held_back_while_replay_takes_no_more(actor) -> None:
    assert not actor.role._replay_blocked()
    actor.replay.full = True
    assert actor.role._replay_blocked()
    actor.replay.poll = lambda: setattr(actor.replay, "full", False)
    assert not actor.role._replay_blocked(), "answers have come in"


def test_an_actor_that_ends_waits_until_every_guest_was_told(tmp_path) -> None:
    actor = Actor(tmp_path, envs=1, eval_envs=0)
    local, remote = actor.join(0), actor.join(-1, -2)
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(actor.role.end, WAIT_S)
        for (slots, streams), row in ((local, 0), (remote, 0), (remote, 1)):
            assert not end.done()
            tell(actor, slots[row : row + 1], streams[row : row + 1])
        end.result(WAIT_S)


def tell(actor: Actor, slots: np.ndarray, streams: np.ndarray) -> None:
    """Acts until the answer is that the run has ended."""
    with pytest.raises(Stopped):
        while True:
            actor.act(make_batch(slots, streams, [1], first=True))


def test_environments_of_a_fleet_without_own_ones_are_told_as_well(tmp_path) -> None:
    actor = Actor(tmp_path, envs=1, eval_envs=0, remote_envs=True)
    slots, streams = actor.join(0)
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(actor.role.end, WAIT_S)
        with pytest.raises(TimeoutError):
            end.result(0.1)
        tell(actor, slots, streams)
        end.result(WAIT_S)


def test_environments_that_left_are_not_waited_for(tmp_path) -> None:
    actor = Actor(tmp_path, envs=1, eval_envs=0, remote_envs=True)
    (_, first), (_, second) = actor.join(0), actor.join(1)
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(actor.role.end, WAIT_S)
        leave(actor, first)
        with pytest.raises(TimeoutError):
            end.result(0.1)
        leave(actor, second)
        end.result(WAIT_S)


def test_a_worker_that_ends_frees_its_slots(actor) -> None:
    (_, first), (_, second), (_, third) = (actor.join(env) for env in range(3))
    assert leave(actor, np.concatenate([first, second])) == {}
    assert actor.role.status()["envs"] == 1
    assert actor.role.slots.known(np.arange(4), np.concatenate([[-1], first, second, third])).tolist() == [
        *[False] * 3,
        True,
    ]


def leave(actor: Actor, streams: np.ndarray) -> Arrays:
    """What a worker that ends sends: it joins with no environments."""
    return actor.role.join({"env": np.zeros(0, np.int32), "stream": streams})


def test_environments_that_join_at_the_end_are_told_as_well(actor) -> None:
    actor.role.end(0.0)
    with pytest.raises(Stopped, match="the run has ended"):
        actor.join(0)


def test_a_continued_run_that_is_at_its_budget_takes_no_further_step(tmp_path) -> None:
    actor = Actor(tmp_path, steps=10)
    actor.role.steps = 10
    slots, streams = actor.join(0)
    actor.act(make_batch(slots, streams, [1], first=True))
    assert actor.replay.methods() == []
    assert actor.report.finishes == ["run.steps=10 reached"]


def test_an_error_of_the_policy_is_the_actors_own(actor) -> None:
    slots, streams = actor.join(0)
    actor.agent.policy = lambda carry, obs, mode: {}["velocity"]
    with pytest.raises(KeyError):
        actor.act(make_batch(slots, streams, [1], first=True))
    (failure,) = actor.failures
    assert isinstance(failure, KeyError)


class Interrupted:
    """Has a slot change hands while its old owner's observation is inside the policy."""

    def __init__(self, actor: Actor) -> None:
        self.slots, self.streams = actor.join(3)
        self.policy = actor.agent.policy
        self.actor = actor

    def __call__(self, carry: Any, obs: Arrays, mode: str) -> Any:
        answer = self.policy(carry, obs, mode)
        joined = self.actor.role.join({"env": np.array([8], np.int32), "stream": self.streams})
        assert joined["slot"].tolist() == self.slots.tolist()
        self.new_stream = joined["stream"]
        self.actor.agent.policy = self.policy
        return answer


def test_a_carry_never_lands_in_a_slot_that_changed_hands_meanwhile(actor) -> None:
    interrupted = actor.agent.policy = Interrupted(actor)
    actor.role.act(make_batch(interrupted.slots, interrupted.streams, [100]), 1)
    assert actor.act(make_batch(interrupted.slots, interrupted.new_stream, [5]))["action"].tolist() == [5]


def test_the_logger_gets_the_number_of_the_environment_that_acted(actor) -> None:
    interrupted = actor.agent.policy = Interrupted(actor)
    actor.act(make_batch(interrupted.slots, interrupted.streams, [100]))
    assert actor.logger.sent("tran")[0]["env"].tolist() == [3]


def test_the_wait_for_guests_has_a_deadline(tmp_path) -> None:
    actor = Actor(tmp_path, envs=1, eval_envs=0)
    slots, streams = actor.join(-1)
    actor.role.end(timeout_s=0.0)
    assert actor.role.slots.live(60.0, remote=True) == 1, "it was given up while a guest was there"
    with pytest.raises(Stopped, match="the run has ended"):
        actor.act(make_batch(slots, streams, [1]))


def test_the_status_shows_steps_live_environments_and_rates(actor) -> None:
    slots, streams = actor.join(0, 1)
    actor.act(make_batch(slots, streams, [1, 1], first=True))
    status = actor.role.status()
    assert (status["step"], status["envs"], status["waiting"]) == (2, 2, {})
    assert status["rates"].keys() == {"env", "policy"}
    assert sum(status["policy_s"].values()) == 1
    assert status["wait_s"].keys() == {"replay", "logger"}


class LostOnce(FakeClient):
    """A replay that is lost with its next call, and is at `step` of the run when it is back."""

    def __init__(self, step: int) -> None:
        super().__init__(sizes=lambda _: {"step": np.array(step)})
        self.lost = False

    def call(self, method: str, arrays: Any = None) -> Any:
        if self.lost and method.startswith("add_batch"):
            self.lost = False
            raise Disconnected("the connection was lost")
        return super().call(method, arrays)


def test_a_lost_replay_costs_the_steps_on_their_way_and_begins_every_stream_anew(tmp_path) -> None:
    actor = Actor(tmp_path)
    replay = actor.role.replay = LostOnce(step=3)
    slots, streams = actor.join(0, 1)
    for value in range(4):
        actor.act(make_batch(slots, streams, [value, value]))
    assert actor.role.steps == 8
    replay.lost = True
    assert actor.act(make_batch(slots, streams, [4, 4]))["known"].all()  # answered before it was passed on
    assert actor.role.steps == 8
    assert actor.report.events == [("steps_lost", {"steps": 5, "reason": "the connection was lost"})]
    assert not actor.act(make_batch(slots, streams, [5, 5]))["known"].any()
    assert replay.methods() == ["add_batch"] * 4 + ["sizes"]
    slots, streams = actor.join(0, 1)
    assert actor.act(make_batch(slots, streams, [6, 6]))["known"].all()
    assert actor.role.steps == 10
    assert [int(sent[RUN_STEP]) for sent in replay.sent("add_batch")] == [2, 4, 6, 8, 10]


def test_steps_answered_before_a_loss_are_not_passed_on_after_it(tmp_path) -> None:
    """With several policy threads, one batch may be answered while another one finds out that replay is gone."""
    actor = Actor(tmp_path)
    replay = actor.role.replay = LostOnce(step=0)
    slots, streams = actor.join(0, 1)
    batches = [make_batch(slots[row : row + 1], streams[row : row + 1], [1.0]) for row in (0, 1)]
    results = [actor.role.act(batch, 1) for batch in batches]
    replay.lost = True
    for batch, result in zip(batches, results, strict=True):
        actor.role.after_act(batch, result, 1)
    assert replay.methods() == ["sizes"]
    assert actor.role.steps == 0


def test_messages_lost_with_the_logger_are_counted_and_the_next_one_is_sent(tmp_path) -> None:
    actor = Actor(tmp_path)
    slots, streams = actor.join(0)
    errors = [Disconnected("the connection was lost")]
    call = actor.logger.call

    def fail_once(method: str, arrays: Any = None) -> Any:
        if errors:
            raise errors.pop()
        return call(method, arrays)

    actor.logger.call = fail_once  # type: ignore[method-assign]
    actor.logger.stats = lambda: {"errors": 7, "inflight": 0, "wait_s": 0.0}  # type: ignore[method-assign]
    actor.act(make_batch(slots, streams, [1.0]))
    assert actor.logger.methods() == ["tran"]
    assert actor.report.events == [("messages_lost", {"messages": 7, "reason": "the connection was lost"})]


def test_of_two_rows_of_one_environment_in_a_batch_only_the_first_is_passed_on(actor) -> None:
    slots, streams = actor.join(0, 1)
    reply = actor.act(make_batch(slots[[0, 1, 0]], streams[[0, 1, 0]], [1, 10, 100], first=True))
    assert reply["known"].tolist() == [True, True, False]
    (stored,) = actor.replay.sent("add_batch")
    assert stored["value"].tolist() == [1, 10]
