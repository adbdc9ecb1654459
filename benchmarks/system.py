"""The whole system: how fast a configuration collects and trains, what waits, and what a step costs.

    python benchmarks/system.py [--json] [--seconds 60] crafter agent.size=size12m run.envs=16
    python benchmarks/system.py [--json] [--seconds 60] --scenario crafter

Takes what `dreamfleet train` takes, or a scenario with its goals, and measures between two statuses of the fleet, after
compilation and the first updates. On a CPU it also says which share of all CPU time computes: environment steps, the
policy and updates. The rest moves data.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from dreamfleet.commands.bench.command import Watch, bench_config, make_unsaved
from dreamfleet.commands.bench.measurements import LEARNER, Measurements, Span, Stage, measurements_between
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import parse_overrides
from dreamfleet.config.schema import Config
from dreamfleet.core.files.disk import atomic_write
from dreamfleet.core.interfaces import AsyncPolicy
from dreamfleet.core.roles import RoleKind
from dreamfleet.launch import factories as build
from dreamfleet.launch import launcher
from dreamfleet.launch.worker_size import envs_per_worker, fleet_args
from dreamfleet.metrics.usage import GpuUsage
from dreamfleet.runs.status import ActorReport, AgentStatus, Report, Role, RunStatus

# The overrides, and the goals: env steps/s and the share of CPU time that computes at least, the share of its time that
# the learner waits and the milliseconds until 99 of 100 actions at most.
SCENARIOS: dict[str, tuple[list[str], dict[str, float]]] = {
    "crafter": (
        ["crafter", "agent.size=size12m", "run.envs=16", "run.train_ratio=32"],
        {"env_steps_per_s": 2500, "learner_waiting": 0.05},
    ),
    "test": (
        ["env=dummy", "agent.size=size12m", "run.envs=32", "run.train_ratio=1"],
        {"env_steps_per_s": 8000},
    ),
    "pong": (
        ["atari", "env=atari:pong", "agent.size=size12m", "run.envs=32", "run.train_ratio=32"],
        {"learner_waiting": 0.05, "action_p99_ms": 20},
    ),
    "large": (
        ["crafter", "agent.size=size200m", "run.envs=16", "run.train_ratio=32"],
        {"learner_waiting": 0.03},
    ),
    "quickstart": (["quickstart", "run.goal=null"], {"computing": 0.70}),
}
TOLD_EVERY_S = 0.5
AT_LEAST = ("env_steps_per_s", "computing")
SERVERS = {RoleKind.AGENT: "actor", RoleKind.REPLAY: "replay", RoleKind.LOGGER: "logger"}
COMPUTING = ("tf_", "Eigen", "XLA", "llvm")  # how XLA names the threads that compute


class Timed:
    """An agent whose updates and policy calls are timed, in CPU seconds of the calling threads, and told in a file."""

    def __init__(self, agent: Any, file: Path) -> None:
        self._agent = agent
        self._file = file
        self._next = 0.0
        self._seconds = {"train": 0.0, "policy": 0.0}  # each is written by one thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def train(self, *arguments: Any) -> Any:
        result = self._time("train", self._agent.train, *arguments)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + TOLD_EVERY_S
            atomic_write(self._file, repr(sum(self._seconds.values())).encode(), synced=False)
        return result

    def policy(self, *arguments: Any) -> Any:
        return self._time("policy", self._agent.policy, *arguments)

    def _time(self, kind: str, function: Callable[..., Any], *arguments: Any) -> Any:
        begun = time.thread_time()
        result = function(*arguments)
        self._seconds[kind] += time.thread_time() - begun
        return result

    # Roles look for these on the class.

    def start_policy(self, *arguments: Any) -> Any:
        fetch = self._time("policy", self._agent.start_policy, *arguments)
        return lambda: self._time("policy", fetch)

    def describe(self) -> Mapping[str, Any]:
        return dict(self._agent.describe())

    def carry_table(self) -> Any:
        return self._agent.carry_table()

    def device_seconds(self) -> Mapping[str, float]:
        return dict(self._agent.device_seconds())


class Follow(Watch):
    """Keeps, besides the first and the last status, what every status in between says of memory, queues and the GPU."""

    def __init__(self, seconds: float, print_line: Callable[[str], None], told: Path) -> None:
        super().__init__(seconds, print_line)
        self.samples: list[dict[str, float]] = []
        self.computed_s: list[float] = []  # CPU seconds that the agent has computed, at the first and the last status
        self._told = told
        self._gpus = GpuUsage()

    def __call__(self, status: RunStatus) -> str | None:
        first, last = bool(self.first), bool(self.last)
        reason = super().__call__(status)
        if bool(self.first) != first or bool(self.last) != last:
            inside = float(self._told.read_text()) if self._told.exists() else 0.0
            self.computed_s.append(inside + pool_s(agent_pid(status)))
        if self.first:
            self.samples.append(self._sample(status))
        return reason

    def _sample(self, status: RunStatus) -> dict[str, float]:
        actor = status.agent.actor or ActorReport()
        gpu = [value for key, value in self._gpus.metrics().items() if key.endswith("/percent")]
        memory = by_kind(status, {name: report_of(role).usage.ram_gb or 0.0 for name, role in status.roles.items()})
        return {
            **{f"memory of {kind}": gigabytes for kind, gigabytes in memory.items()},
            "queued": actor.server.get("queue", 0.0),
            "gpu_percent": sum(gpu) / len(gpu) if gpu else 0.0,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the measurement")
    parser.add_argument("--scenario", choices=SCENARIOS, help="one whose goals are known")
    parser.add_argument("words", nargs="*", help="presets and KEY=VALUE, as for dreamfleet train")
    options = parser.parse_intermixed_args()
    words, goals = SCENARIOS[options.scenario] if options.scenario else ([], {})
    result = measure(parse_overrides([*words, *options.words]), options.seconds)
    result["command"] = " ".join(["python benchmarks/system.py", *sys.argv[1:]])
    result["goals"] = {name: compare(name, result[name], goal) for name, goal in goals.items()}
    print(json.dumps(result) if options.json else table(result))


def measure(config: Config, seconds: float) -> dict[str, Any]:
    config = bench_config(config)
    build.check_names(config)
    folder = Path(tempfile.mkdtemp(prefix="dreamfleet-system-"))
    args = fleet_args(config, folder)
    told = folder / "computed"
    follow = Follow(seconds, lambda line: print(line, file=sys.stderr, flush=True), told)
    try:
        factories = build.make_factories(config, folder)
        timed = dataclasses.replace(factories, make_agent=partial(make_timed, factories.make_agent, told))
        code = launcher.run_fleet(timed, args, follow)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if code or not follow.last:
        raise SystemExit(f"the fleet ended with code {code}")
    return report(config, args, follow)


def make_timed(make_agent: Callable[[], Any], file: Path) -> Any:
    agent = make_unsaved(make_agent)
    return Timed(agent, file) if isinstance(agent, AsyncPolicy) else agent  # others compute next to nothing


def report(config: Config, args: FleetArgs, follow: Follow) -> dict[str, Any]:
    first, last = follow.first, follow.last
    assert first is not None and last is not None  # else `measure` has ended
    measurements = measurements_between(first, last, args)
    trained = measurements.updates_per_s * config.batch_size * config.batch_length
    waiting = sum(measurements.stages[LEARNER].waits.values())
    samples = follow.samples
    return {
        "machine": {"cores": psutil.cpu_count(), "python": platform.python_version(), "devices": devices(last)},
        "env": config.env.name,
        "envs": config.run.envs,
        "envs_per_worker": envs_per_worker(args),
        "seconds": round(measurements.seconds, 1),
        "env_steps_per_s": round(measurements.env_steps_per_s, 1),
        "updates_per_s": round(measurements.updates_per_s, 2),
        "replayed_steps_per_s": round(trained, 1),
        "train_ratio": {"wanted": config.run.train_ratio, "reached": round(trained / measurements.env_steps_per_s, 3)},
        "learner_waiting": round(waiting, 4),  # while the device has nothing to compute
        "device_idle": round(1 - measurements.stages[LEARNER].parts.get("computing", 1 - waiting), 4),
        "gpu_busy": round(mean(samples, "gpu_percent") / 100, 3),
        "action_p50_ms": measurements.actions_ms.p50,
        "action_p99_ms": measurements.actions_ms.p99,
        "policy_lag_updates": {  # that begin between an observation and its action
            "p50": lag(measurements, measurements.actions_ms.p50),
            "p99": lag(measurements, measurements.actions_ms.p99),
        },
        "policy_p50_ms": measurements.policy_ms.p50,
        "policy_p99_ms": measurements.policy_ms.p99,
        "env_step_ms": round(measurements.step_ms, 3),
        "rows_per_policy_call": round(measurements.rows_per_call, 2),
        "cpu_us_per_step": cpu_per_step(first, last, measurements),
        "bytes_per_step": bytes_per_step(first, last, measurements),
        "stages": {name: stage_shares(stage) for name, stage in measurements.stages.items()},
        "held_by_train_ratio": {
            "samples": round(measurements.samples_held, 3),
            "inserts": round(measurements.inserts_held, 3),
        },
        "computing": round(computing(first, last, measurements, follow.computed_s), 3),
        # Of each quarter of the time: what is flat in the last three does not grow once replay is full.
        "memory_gb": {kind: quarters(samples, f"memory of {kind}") for kind in cpu_s(first, last)},
        "replay_gb": samples[-1]["memory of replay"],  # at the end
        "queued": quarters(samples, "queued"),
    }


def stage_shares(stage: Stage) -> dict[str, float]:
    """Of the time: busy, waits by what for, and what it is busy with."""
    shares = {"busy": stage.busy, **{f"waits for {name}": share for name, share in stage.waits.items()}, **stage.parts}
    return {name: round(share, 3) for name, share in shares.items()}


def cpu_s(first: RunStatus, last: RunStatus) -> dict[str, float]:
    """CPU seconds between two statuses, by kind of role."""
    spans = {name: span_of(report_of(first.roles[name]), report_of(role)) for name, role in last.roles.items()}
    return by_kind(last, {name: span.total("usage", "cpu_total_s") for name, span in spans.items()})


def report_of(role: Role) -> Report:
    """What a role says of its process; of the agent's parts, which share one, what the actor says."""
    return (role.status.actor or Report()) if isinstance(role, AgentStatus) else role.status


def by_kind(status: RunStatus, values: Mapping[str, float]) -> dict[str, float]:
    """Sums over roles of a kind."""
    added: dict[str, float] = {}
    for name, value in values.items():
        kind = str(status.roles[name].kind)
        added[kind] = added.get(kind, 0.0) + value
    return added


def agent_pid(status: RunStatus) -> int:
    (agent,) = status.of_kind(RoleKind.AGENT)
    return int(agent.pid)


def cpu_per_step(first: RunStatus, last: RunStatus, measurements: Measurements) -> dict[str, float]:
    steps = measurements.env_steps_per_s * measurements.seconds
    return {kind: round(1e6 * seconds / steps, 1) for kind, seconds in cpu_s(first, last).items()}


def bytes_per_step(first: RunStatus, last: RunStatus, measurements: Measurements) -> dict[str, float]:
    """By the server that they went to or came from."""
    steps = measurements.env_steps_per_s * measurements.seconds
    found = {}
    for name, role in last.roles.items():
        if role.kind in SERVERS:
            span = span_of(report_of(first.roles[name]), report_of(role))
            for direction in ("in", "out"):
                found[f"{SERVERS[role.kind]} {direction}"] = round(span.total("server", f"bytes_{direction}") / steps)
    return found


def computing(first: RunStatus, last: RunStatus, measurements: Measurements, computed_s: list[float]) -> float:
    """Which share of the CPU time is environment steps, policy and updates.

    An env worker's CPU time is divided as its time is: a core that is taken away is taken from both alike.
    """
    used = cpu_s(first, last)
    parts = measurements.stages["environments"].parts
    stepping = parts["stepping"] / max(1e-9, parts["stepping"] + parts["messages"])
    return (used.get("env", 0.0) * stepping + computed_s[-1] - computed_s[0]) / sum(used.values())


def pool_s(pid: int) -> float:
    """CPU seconds of the threads in which XLA computes."""
    seconds = 0.0
    for thread in psutil.Process(pid).threads():
        name = Path(f"/proc/{pid}/task/{thread.id}/comm").read_text()
        if name.startswith(COMPUTING):
            seconds += thread.user_time + thread.system_time
    return seconds


def span_of(first: Report, last: Report) -> Span:
    return Span(first.model_dump(), last.model_dump())


def lag(measurements: Measurements, milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1e3 * measurements.updates_per_s, 3)


def mean(samples: list[dict[str, float]], key: str) -> float:
    return round(sum(sample[key] for sample in samples) / max(1, len(samples)), 3)


def quarters(samples: list[dict[str, float]], key: str) -> list[float]:
    ends = [len(samples) * part // 4 for part in range(5)]
    return [mean(samples[begin:end], key) for begin, end in pairwise(ends)]


def devices(status: RunStatus) -> Any:
    return status.agent.about.get("devices")


def compare(name: str, value: float, goal: float) -> dict[str, Any]:
    met = value >= goal if name in AT_LEAST else value <= goal
    return {"goal": goal, "measured": value, "ratio": round(value / goal, 3), "met": met}


def table(result: dict[str, Any]) -> str:
    lines = []
    for key, value in result.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {part}" for name, part in value.items())
        lines.append(f"{key:22} {value}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
