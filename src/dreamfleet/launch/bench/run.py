"""Runs a fleet for as long as it takes to measure it, in a folder that is deleted afterwards."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.config.schema import AUTO_ADDRESS, Config
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.interfaces import Agent
from dreamfleet.launch import build, launcher, terminal
from dreamfleet.launch.bench.figures import Figures, Status, clocks, figures_between
from dreamfleet.launch.bench.verdict import Bottleneck, decide
from dreamfleet.launch.exit_codes import EXIT_FAILED
from dreamfleet.launch.factories import Factories
from dreamfleet.launch.machine import machine_busy_s, usable_cores
from dreamfleet.launch.sizing import envs_per_worker, fleet_args

SETTLE_S = 2.0, 10.0  # from the first update until measuring begins: a sixth of the time measured, within these
LATE_S = 10.0  # that a report is waited for; roles send one a second
FIRST_UPDATE_S = 300.0  # after which an update is no longer waited for: collecting alone is measured then
LOCAL_SINKS = ("jsonl", "tensorboard")

Say = Callable[[str], None]
MakeFactories = Callable[[Config, Path], Factories]


@dataclass(frozen=True)
class Bench:
    config: Config
    args: FleetArgs
    figures: Figures
    verdicts: list[Bottleneck]
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
            "binding": self.verdicts[0].stage,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            **asdict(self.figures),
        }


def bench(
    config: Config, seconds: float, say: Say | None = None, make_factories: MakeFactories | None = None
) -> Bench | int:
    """Measures a run of this configuration; or returns the exit code of a fleet that failed, which has said why.

    Start, compilation and the steps before the first update are not measured. Reports and snapshots are left out:
    they come once in minutes.
    """
    config = bench_config(config)
    build.check_names(config)
    folder = Path(tempfile.mkdtemp(prefix="dreamfleet-bench-"))
    args = fleet_args(config, folder)
    watch = Watch(seconds, say or terminal.say)
    code: int | None = None
    try:
        factories = (make_factories or build.make_factories)(config, folder)
        unsaved = replace(factories, make_agent=partial(make_unsaved, factories.make_agent))
        code = launcher.run_fleet(unsaved, args, watch)
    finally:
        if code == EXIT_FAILED:
            watch.say(f"bench: the fleet failed; its logs are in {folder / 'logs'}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if code or not watch.last:
        return code or EXIT_FAILED
    figures = figures_between(watch.first, watch.last, args)
    cores = usable_cores()
    others = max(0.0, watch.machine_s / figures.seconds - figures.cores_used)
    return Bench(config, args, figures, decide(figures, args, cores - others), cores, others)


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


class Watch:
    """Follows a fleet's status. Keeps one when training is under way and one `seconds` later, then ends the run."""

    def __init__(self, seconds: float, say: Say, now: Callable[[], float] = time.monotonic) -> None:
        self.first: Status = {}
        self.last: Status = {}
        self.machine_s = 0.0  # what all cores worked in between, for this fleet and for others
        self.say = say
        self._seconds = seconds
        self._settle_s = min(SETTLE_S[1], max(SETTLE_S[0], seconds / 6))
        self._now = now
        self._phase = ""
        self._since = now()

    def __call__(self, status: Status) -> str | None:
        if status["state"] == "starting":
            self._enter("starting")
        elif status["state"] == "running":
            return self._follow(status)
        return None

    def _follow(self, status: Status) -> str | None:
        if not all((role["status"] or {}) for role in status["roles"].values()):
            return None  # some role has not told anything yet
        agent = status["roles"]["agent"]["status"]
        if "learner" not in agent or "actor" not in agent:
            return None
        if self._phase in ("", "starting"):
            self._enter("filling replay until the first update")
        updates = agent["learner"]["updates"]
        if self._phase.startswith("filling"):
            if updates or self._in_phase_s() > FIRST_UPDATE_S:
                self._enter("settling")
        elif self._phase == "settling":
            if self._in_phase_s() >= self._settle_s:
                self.first, self.machine_s = status, machine_busy_s()
                self._enter(f"measuring for {self._seconds:g} s")
        elif not self.last and self._in_phase_s() >= self._seconds:
            return self._finish(status)
        return None

    def _finish(self, status: Status) -> str | None:
        """Once everyone has reported since `first`."""
        before = clocks(self.first)
        silent = [name for name, clock_s in clocks(status).items() if clock_s <= before.get(name, 0.0)]
        if not silent:
            self.last, self.machine_s = status, machine_busy_s() - self.machine_s
            return "measured"
        if self._in_phase_s() < self._seconds + LATE_S:
            return None
        self.say(
            f"bench: nothing was heard of {', '.join(silent)} since measuring began: see its log, or measure again"
        )
        return "not measured"

    def _enter(self, phase: str) -> None:
        if phase != self._phase:
            self._phase, self._since = phase, self._now()
            if phase != "settling":
                self.say(f"bench: {phase}")

    def _in_phase_s(self) -> float:
        return self._now() - self._since
