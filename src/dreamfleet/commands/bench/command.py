"""Measure a fleet in a temporary run folder."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

from dreamfleet.commands.bench.bottleneck import Bottleneck, decide
from dreamfleet.commands.bench.measurements import Measurements, clocks, measurements_between
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.schema import AUTO_ADDRESS, Config
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.factories import Factories
from dreamfleet.core.interfaces import Agent
from dreamfleet.launch import factories as build
from dreamfleet.launch import launcher
from dreamfleet.launch.worker_size import envs_per_worker, fleet_args
from dreamfleet.runs.status import RunState, RunStatus
from dreamfleet.supervision import terminal
from dreamfleet.supervision.exit_codes import EXIT_FAILED
from dreamfleet.supervision.machine import machine_busy_s, usable_cores

SETTLE_S = 2.0, 10.0  # from the first update until measuring begins: a sixth of the time measured, within these
LATE_S = 10.0  # that a report is waited for; roles send one a second
FIRST_UPDATE_S = 300.0  # after which an update is no longer waited for: collecting alone is measured then
LOCAL_SINKS = ("jsonl", "tensorboard")

PrintLine = Callable[[str], None]
MakeFactories = Callable[[Config, Path], Factories]


@dataclass(frozen=True)
class Bench:
    config: Config
    args: FleetArgs
    measurements: Measurements
    bottlenecks: list[Bottleneck]
    cores: float
    others_cores: float  # what other programs of the machine used meanwhile

    def to_json(self) -> dict[str, Any]:
        config = self.config
        return {
            "env": config.env.name,
            "agent": config.agent.name,
            "envs": config.run.envs,
            "envs_per_worker": envs_per_worker(self.args),
            "train_ratio": config.run.train_ratio,
            "cores": self.cores,
            "others_cores": self.others_cores,
            "binding": self.bottlenecks[0].stage,
            "verdicts": [asdict(bottleneck) for bottleneck in self.bottlenecks],
            **asdict(self.measurements),
        }


def bench(
    config: Config, seconds: float, print_line: PrintLine | None = None, make_factories: MakeFactories | None = None
) -> Bench | int:
    """Measures a run of this configuration; or returns the exit code of a fleet that failed, which has said why.

    Start, compilation and the steps before the first update are not measured. Reports and snapshots are left out:
    they come once in minutes.
    """
    config = bench_config(config)
    build.check_names(config)
    folder = Path(tempfile.mkdtemp(prefix="dreamfleet-bench-"))
    args = fleet_args(config, folder)
    watch = Watch(seconds, print_line or terminal.print_line)
    code: int | None = None
    try:
        factories = (make_factories or build.make_factories)(config, folder)
        unsaved = replace(factories, make_agent=partial(make_unsaved, factories.make_agent))
        code = launcher.run_fleet(unsaved, args, watch)
    finally:
        if code == EXIT_FAILED:
            watch.print_line(f"bench: the fleet failed; its logs are in {folder / 'logs'}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if code or not watch.first or not watch.last:
        return code or EXIT_FAILED
    measurements = measurements_between(watch.first, watch.last, args)
    cores = usable_cores()
    others = max(0.0, watch.machine_s / measurements.seconds - measurements.cores_used)
    return Bench(config, args, measurements, decide(measurements, args, cores - others), cores, others)


def bench_config(config: Config) -> Config:
    """The configuration, but without end, snapshots and reports, at addresses of its own, and seen by nobody else."""
    if config.run.remote_envs or config.run.remote_replay:
        raise ConfigError("bench runs the whole fleet on this machine: leave out run.remote_envs and run.remote_replay")
    if config.run.script == "single":
        raise ConfigError("bench measures a fleet of processes: leave out run.script=single")
    addresses = dict.fromkeys(("actor_addr", "replay_addr", "logger_addr"), AUTO_ADDRESS)
    ends = {"steps": 10**10, "duration": 0.0, "save_every": 0.0, "report_every": 0.0}
    sinks = tuple(sink for sink in config.logger.sinks if sink in LOCAL_SINKS)
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={**ends, **addresses}),
            "agent": config.agent.model_copy(update={"report": False}),
            "logger": config.logger.model_copy(update={"sinks": sinks}),
        }
    )


def make_unsaved(make_agent: Callable[[], Agent]) -> Agent:
    """The agent, for a run that nobody continues: the snapshot at its end need not hold gigabytes of parameters."""
    agent = make_agent()
    with contextlib.suppress(AttributeError):  # one with slots is saved
        agent.save = dict  # type: ignore[method-assign]
    return agent


class Phase(Enum):
    """What a run that is measured is doing."""

    STARTING = auto()
    FILLING = auto()
    SETTLING = auto()
    MEASURING = auto()


PHASE_WORDS = {
    Phase.STARTING: "starting",
    Phase.FILLING: "filling replay until the first update",
    Phase.MEASURING: "measuring for {seconds:g} s",
}


class Watch:
    """Follows a fleet's status. Keeps one when training is under way and one `seconds` later, then ends the run."""

    def __init__(self, seconds: float, print_line: PrintLine, now: Callable[[], float] = time.monotonic) -> None:
        self.first: RunStatus | None = None
        self.last: RunStatus | None = None
        self.machine_s = 0.0  # what all cores worked in between, for this fleet and for others
        self.print_line = print_line
        self._seconds = seconds
        self._settle_s = min(SETTLE_S[1], max(SETTLE_S[0], seconds / 6))
        self._now = now
        self._phase: Phase | None = None
        self._since = now()

    def __call__(self, status: RunStatus) -> str | None:
        if status.state is RunState.STARTING:
            self._enter(Phase.STARTING)
        elif status.state is RunState.RUNNING:
            return self._follow(status)
        return None

    def _follow(self, status: RunStatus) -> str | None:
        agent = status.agent
        if any(role.status.is_empty for role in status.roles.values()) or agent.actor is None or agent.learner is None:
            return None  # some role has not reported yet
        if self._phase in (None, Phase.STARTING):
            self._enter(Phase.FILLING)
        if self._phase is Phase.FILLING:
            if agent.learner.updates or self._in_phase_s() > FIRST_UPDATE_S:
                self._enter(Phase.SETTLING)
        elif self._phase is Phase.SETTLING:
            if self._in_phase_s() >= self._settle_s:
                self.first, self.machine_s = status, machine_busy_s()
                self._enter(Phase.MEASURING)
        elif not self.last and self._in_phase_s() >= self._seconds:
            return self._finish(status)
        return None

    def _finish(self, status: RunStatus) -> str | None:
        """Once everyone has reported since `first`."""
        before = clocks(self.first) if self.first else {}
        silent = [name for name, clock_s in clocks(status).items() if clock_s <= before.get(name, 0.0)]
        if not silent:
            self.last, self.machine_s = status, machine_busy_s() - self.machine_s
            return "measured"
        if self._in_phase_s() < self._seconds + LATE_S:
            return None
        self.print_line(
            f"bench: nothing was heard of {', '.join(silent)} since measuring began: see its log, or measure again"
        )
        return "not measured"

    def _enter(self, phase: Phase) -> None:
        if phase is not self._phase:
            self._phase, self._since = phase, self._now()
            if words := PHASE_WORDS.get(phase):
                self.print_line(f"bench: {words.format(seconds=self._seconds)}")

    def _in_phase_s(self) -> float:
        return self._now() - self._since
