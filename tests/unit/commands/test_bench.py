"""What bench makes of two statuses, which stage it names, and when it takes the statuses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dreamfleet.agent.random_agent import RandomAgent
from dreamfleet.commands.bench.bottleneck import decide
from dreamfleet.commands.bench.command import Bench, Watch, bench_config, make_unsaved
from dreamfleet.commands.bench.measurements import STAGES, Latency, Measurements, Stage, measurements_between
from dreamfleet.commands.bench.text import bench_text
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import parse_overrides
from dreamfleet.core.errors import ConfigError
from support.statuses import parse

ARGS = FleetArgs(envs=8, envs_per_worker=4, actor_batch=4)
FREE = Measurements(
    seconds=60.0,
    env_steps_per_s=100.0,
    updates_per_s=3.0,
    policy_ms=Latency(2.0, 5.0),
    actions_ms=Latency(3.0, 9.0),
    rows_per_call=4.0,
    step_ms=1.0,
    cores_used=1.0,
    stages={},
    samples_held=0.0,
    inserts_held=0.0,
)


def measurements(
    env: float = 0.1,
    policy: float = 0.1,
    learner: float = 0.1,
    inserting: float = 0.0,
    sampling: float = 0.0,
    updating: float = 0.0,
    logger: float = 0.0,
    samples_held: float = 0.0,
    inserts_held: float = 0.0,
    **more: Any,
) -> Measurements:
    """A fleet whose stages are busy for these shares of the time."""
    parts = {"inserting": inserting, "sampling": sampling, "updating": updating}
    stages = {
        "environments": Stage(env, {"actions": 1 - env}, {"stepping": env, "messages": 0.0}),
        "policy": Stage(policy, {"observations": 1 - policy}, {"answering": policy, "passing on": 0.0}),
        "learner": Stage(learner, {"batches": 1 - learner}),
        "replay": Stage(max(parts.values()), {}, parts),
        "logger": Stage(logger),
    }
    return replace(FREE, stages=stages, samples_held=samples_held, inserts_held=inserts_held, **more)


@pytest.mark.parametrize(
    ("measured", "side", "stage"),
    [
        (measurements(env=1.0, policy=0.2, learner=0.3, samples_held=0.7), "collecting", "environments"),
        (measurements(env=0.1, policy=1.0, learner=0.3, samples_held=0.7), "collecting", "policy"),
        (measurements(env=0.1, policy=0.1, learner=1.0, inserts_held=0.8), "training", "learner"),
        (measurements(env=0.1, learner=0.4, sampling=1.0, inserts_held=0.8), "training", "replay"),
        (measurements(env=0.1, learner=0.4, updating=1.0, inserts_held=0.8), "training", "replay"),
        (measurements(env=0.1, learner=0.1, inserting=0.97, samples_held=0.8), "collecting", "replay"),
        (measurements(env=0.1, learner=0.1, logger=0.97, samples_held=0.8), "collecting", "logger"),
        # Environments and policy take turns and neither is always busy; the learner is held back all the same.
        (measurements(env=0.6, policy=0.4, learner=0.8, samples_held=0.2), "collecting", "environments"),
        (measurements(env=0.4, policy=0.6, learner=0.8, samples_held=0.2), "collecting", "policy"),
        # A policy that is busy most of the time does not bind while steps are held back.
        (measurements(policy=0.97, learner=0.95, inserts_held=0.1), "training", "learner"),
        # So little is held back that neither side is known to wait: whoever is busiest.
        (measurements(env=0.5, policy=0.3, learner=0.99, samples_held=0.01, inserts_held=0.03), "both", "learner"),
        (measurements(env=0.99, policy=0.3, learner=0.9, samples_held=0.04), "both", "environments"),
        (measurements(env=0.5, policy=0.3, learner=0.5, sampling=0.98), "both", "replay"),
    ],
)
def test_the_binding_stage_follows_from_who_is_held_back_and_who_is_busy(
    measured: Measurements, side: str, stage: str
) -> None:
    (bottleneck,) = decide(measured, ARGS, cores=16)
    assert (bottleneck.side, bottleneck.stage) == (side, stage)


def test_without_a_train_ratio_both_sides_have_a_binding_stage() -> None:
    measured = measurements(env=1.0, policy=0.2, learner=0.98)
    found = decide(measured, ARGS.model_copy(update={"train_ratio": 0.0}), cores=16)
    assert [(bottleneck.side, bottleneck.stage) for bottleneck in found] == [
        ("collecting", "environments"),
        ("training", "learner"),
    ]


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (measurements(env=1.0, samples_held=1.0), "set run.envs_per_worker below 4"),
        (measurements(env=1.0, samples_held=1.0, cores_used=15.0), "All cores are in use"),
        (measurements(policy=1.0, samples_held=1.0), "raise run.actor_batch (now 4)"),
        (measurements(policy=1.0, samples_held=1.0, rows_per_call=1.5), "raise run.envs, as a call takes up to 4"),
        (
            measurements(policy=0.9, learner=0.6, samples_held=0.8, policy_ms=Latency(2.0, 400.0)),
            "lower run.train_ratio (now 32)",
        ),
        (measurements(policy=0.3, samples_held=0.8), "raise run.envs, so that more is on the way at once"),
        (measurements(learner=0.3, inserts_held=0.8), "choose larger batches"),
        (measurements(learner=1.0, inserts_held=0.9), "a run.train_ratio below 32"),
        (measurements(sampling=1.0, inserts_held=0.9), "a smaller batch_size or batch_length"),
        (measurements(logger=1.0, samples_held=0.9), "run.log_every"),
    ],
)
def test_what_to_change_fits_the_figures(measured: Measurements, words: str) -> None:
    assert words in decide(measured, ARGS, cores=16)[0].change


def status(clock_s: float, **totals: float) -> dict[str, Any]:
    """As the supervisor writes it; roles report at times of their own."""

    def total(name: str) -> float:
        return totals.get(name, 0.0)

    def usage(name: str) -> dict[str, float]:
        return {"cpu_total_s": total(name)}

    actor = {
        "clock_s": clock_s,
        "step": total("step"),
        "wait_s": {"replay": total("blocked_s"), "logger": 0.0},
        "policy_s": {"100": total("calls")},
        "server": {"rows": total("rows"), "handler_s": total("handler_s"), "post_s": total("post_s")},
        "usage": usage("agent_cpu_s"),
    }
    learner = {
        "clock_s": clock_s + 0.5,
        "updates": total("updates"),
        "waited_s": {"replay_to_sample": total("awaited_s")},
        "usage": usage("agent_cpu_s"),  # the same process
    }
    replay = {
        "clock_s": clock_s,
        "limiter": {"sample_wait_s": total("sample_wait_s"), "insert_wait_s": total("insert_wait_s")},
        "server": {"add_batch/busy_s": total("add_s"), "sample_batch_train/busy_s": total("sample_s")},
        "usage": usage("replay_cpu_s"),
    }
    worker = {
        "clock_s": clock_s,
        "steps": total("step"),
        "step_s": total("step_s"),
        "actions_wait_s": total("actions_wait_s"),
        "actions_s": {"150": total("calls")},
        "usage": usage("env_cpu_s"),
    }
    roles = {
        "agent": {"actor": actor, "learner": learner},
        "replay": replay,
        "logger": {"clock_s": clock_s, "server": {"tran/busy_s": total("tran_s")}, "usage": usage("logger_cpu_s")},
        "env-0": worker,
        "eval-0": {**worker, "usage": usage("none")},
    }
    return {"state": "running", "roles": {name: {"status": told} for name, told in roles.items()}}


def test_figures_are_the_growth_of_totals_over_the_time_between_two_statuses() -> None:
    first = status(100.0, step=1000.0, updates=50.0, calls=500.0, rows=1000.0, awaited_s=7.0, step_s=3.0)
    last = status(
        110.0,
        step=3000.0,
        updates=80.0,
        calls=1000.0,
        rows=3000.0,
        awaited_s=9.5,
        step_s=7.0,
        actions_wait_s=5.0,
        handler_s=6.0,
        post_s=2.0,
        blocked_s=1.5,
        add_s=3.0,
        insert_wait_s=2.0,
        sample_s=9.0,
        sample_wait_s=4.0,
        tran_s=0.5,
        agent_cpu_s=8.0,
        env_cpu_s=5.0,
    )
    found = measurements_between(parse(first), parse(last), ARGS)
    assert (found.seconds, found.env_steps_per_s, found.updates_per_s) == (10.0, 200.0, 3.0)
    assert (found.rows_per_call, found.step_ms, found.cores_used) == (4.0, 2.0, pytest.approx(1.3))
    assert (found.samples_held, found.inserts_held) == (0.4, 0.2)
    assert found.policy_ms.p50 == found.policy_ms.p99 == pytest.approx(1e-4 * 2 ** (100.5 / 8))
    stages = found.stages
    assert stages["environments"].busy == 0.5
    assert stages["environments"].parts == {"stepping": 0.4, "messages": pytest.approx(0.1)}
    assert stages["policy"].busy == pytest.approx(0.65)  # 6 s answering, and 2 s passing on of which 1.5 s waiting
    assert stages["policy"].waits["observations"] == pytest.approx(0.2)
    assert stages["learner"].busy == 0.75
    assert stages["replay"].parts == {"inserting": 0.1, "sampling": 0.5, "updating": 0.0}
    assert stages["logger"].busy == 0.05


@pytest.mark.parametrize(
    ("awaited_s", "idle_s", "waiting", "host"),
    [(4.0, 1.0, 0.1, 0.0), (4.0, 4.0, 0.4, 0.0), (2.0, 3.0, 0.2, 0.1), (0.0, 0.5, 0.0, 0.05)],
)
def test_a_learner_that_waits_while_its_device_computes_is_busy(
    awaited_s: float, idle_s: float, waiting: float, host: float
) -> None:
    first, last = status(100.0), status(110.0, awaited_s=awaited_s)
    for told, seconds in ((first, (5.0, 2.0)), (last, (15.0 - idle_s, 2.0 + idle_s))):
        told["roles"]["agent"]["status"]["learner"]["device_s"] = dict(zip(("busy", "idle"), seconds, strict=True))
    stage = measurements_between(parse(first), parse(last), ARGS).stages["learner"]
    assert stage.busy == pytest.approx(1 - waiting)
    assert stage.waits["batches"] == pytest.approx(waiting)
    assert stage.parts == {"computing": pytest.approx(1 - idle_s / 10), "on the host": pytest.approx(host)}


def test_a_fleet_that_never_trained_has_figures_too() -> None:
    first = parse(status(0.0))
    found = measurements_between(
        first, parse(status(10.0, step=20.0, awaited_s=10.0, step_s=10.0, sample_wait_s=10.0)), ARGS
    )
    assert found.updates_per_s == 0
    assert found.policy_ms == Latency(None, None)
    assert decide(found, ARGS, cores=2)[0].stage == "environments"


class Follower:
    """A watch with a clock by hand, and what it said."""

    def __init__(self, seconds: float) -> None:
        self.said: list[str] = []
        self.time_s = 0.0
        self.watch = Watch(seconds, self.said.append, lambda: self.time_s)

    def see(self, time_s: float, state: str = "running", updates: float = 1.0) -> str | None:
        self.time_s = time_s
        return self.watch(parse({**status(time_s, updates=updates), "state": state}))


def test_measuring_begins_some_seconds_after_the_first_update_and_then_ends_the_run() -> None:
    follower = Follower(12.0)
    assert follower.see(0, "starting") is None
    assert follower.see(40, updates=0) is None
    assert follower.see(50) is None  # settles for a sixth of 12 s
    assert follower.see(51) is None
    assert follower.watch.first is None
    assert follower.see(52) is None
    assert follower.see(63) is None
    assert follower.see(64) == "measured"
    first, last = follower.watch.first, follower.watch.last
    assert first is not None and last is not None
    assert (first.replay.clock_s, last.replay.clock_s) == (52, 64)
    assert [line.split()[1] for line in follower.said] == ["starting", "filling", "measuring"]
    assert follower.see(65, "stopping") is None


@pytest.mark.parametrize("late", ["actor", "learner", "replay", "env-0"])
def test_measuring_ends_when_everyone_has_reported_again(late: str) -> None:
    def see(time_s: float, late_clock_s: float) -> str | None:
        found = status(time_s, updates=1.0)
        roles = found["roles"]
        (roles["agent"]["status"][late] if late in roles["agent"]["status"] else roles[late]["status"]).update(
            clock_s=late_clock_s
        )
        follower.time_s = time_s
        return follower.watch(parse({**found, "state": "running"}))

    follower = Follower(1.0)
    for time_s in (0, 1, 2, 3):
        assert see(time_s, min(time_s, 2)) is None
    assert see(3.5, 3.4) == "measured"
    follower = Follower(1.0)
    for time_s in (0, 1, 2, 3, 12):
        assert see(time_s, min(time_s, 2)) is None
    assert see(14, 2) == "not measured"
    assert follower.watch.last is None
    assert f"nothing was heard of {late} since" in follower.said[-1]


def test_a_fleet_that_does_not_come_to_train_is_measured_after_five_minutes() -> None:
    follower = Follower(10.0)
    follower.see(0, updates=0)
    follower.see(299, updates=0)
    follower.see(301, updates=0)
    follower.see(304, updates=0)
    assert follower.watch.first is not None
    assert follower.see(314, updates=0) == "measured"


def test_a_status_that_lacks_a_role_is_not_used() -> None:
    follower = Follower(1.0)
    missing = status(0.0, updates=1.0)
    missing["roles"]["replay"]["status"] = None
    assert follower.watch(parse(missing)) is None
    assert follower.said == []


def test_the_run_has_no_end_no_snapshots_and_addresses_of_its_own() -> None:
    words = [
        "run.steps=5e3",
        "run.duration=9",
        "run.actor_addr=tcp://127.0.0.1:5555",
        "logger.sinks=[wandb,tensorboard]",
    ]
    config = bench_config(parse_overrides(words))
    assert (config.run.steps, config.run.duration, config.run.save_every) == (10**10, 0, 0)
    assert "5555" not in config.run.actor_addr
    assert config.logger.sinks == ("tensorboard",)


@pytest.mark.parametrize("key", ["run.remote_envs=true", "run.remote_replay=true"])
def test_a_fleet_of_several_machines_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="bench runs the whole fleet on this machine"):
        bench_config(parse_overrides([key]))


def test_a_run_in_one_process_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"leave out run\.script=single"):
        bench_config(parse_overrides(["run.script=single"]))


def test_the_agent_saves_nothing() -> None:
    agent = make_unsaved(lambda: RandomAgent({}))
    assert agent.save() == {}
    assert agent.init_policy(1) == {}


@pytest.mark.parametrize("train_ratio", [32, 0])
def test_the_text_fits_80_columns_and_the_json_has_all_of_it(train_ratio: int) -> None:
    config = bench_config(parse_overrides(["run.envs=8", f"run.train_ratio={train_ratio}", "env=package.module:Name"]))
    args = FleetArgs.from_config(config, "")
    measured = measurements(env=1.0, learner=1.0, policy=0.3, samples_held=0.9, cores_used=2.0)
    found = Bench(config, args, measured, decide(measured, args, 2.0), 2.0, 1.5)
    text = bench_text(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "The environments bind collecting" in text
    assert "Other programs used 1.5 cores" in text
    assert ("The learner binds training" in text) == (train_ratio == 0)
    told = json.loads(json.dumps(found.to_json()))
    assert told["binding"] == "environments"
    assert set(told["stages"]) == set(STAGES)
    assert told["policy_ms"] == {"p50": 2.0, "p99": 5.0}
