"""Summary of a run's status, which all displays of a run use."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dreamfleet.core.context import TERMINAL_TEXT
from dreamfleet.core.events import Event
from dreamfleet.core.roles import WORKERS, RoleKind
from dreamfleet.core.text.words import limiter_words, wait_words
from dreamfleet.core.waits import LimiterState
from dreamfleet.runs.status import (
    LimiterReport,
    LoggerReport,
    Pace,
    Report,
    RunAbout,
    RunState,
    RunStatus,
    StoreReport,
    Usage,
    WorkerStatus,
)
from dreamfleet.ui.format import roughly

DIED = "died"  # the state of a run that ended without writing it
ENDLESS = 10**10  # the default of run.steps, for which no progress is shown
SHOWN_SHARE = 0.01
LONG_WAIT_S = 5.0  # longer waits are shown with their duration instead of their share
NOTEWORTHY = (
    *(Event.ENV_RESTART, Event.RESTART, Event.STALL, Event.RECOVERED, Event.DISCONNECT, Event.STEPS_LOST),
    *(Event.SNAPSHOT, Event.SAVE_FAILED, Event.RESTORE, Event.FAILURE, Event.STOP, Event.WARNING),
    *(Event.REFUSED, Event.SET_ASIDE, Event.WORKER_LOST, Event.RUN_LOST, Event.METRICS_REFUSED),
)
WORDS = ("message", "reason", "text", "error", TERMINAL_TEXT)  # keys of the text in an event's details


@dataclass(frozen=True)
class RoleLine:
    """One line of the table of roles. All env workers of a kind share one line."""

    name: str
    state: str
    waits: str = ""
    long_wait: bool = False  # longer than usual
    cpu_percent: float | None = None
    ram_gb: float | None = None


@dataclass(frozen=True)
class EpisodeReturns:
    episodes: int = 0
    last: float | None = None
    mean: float | None = None  # over the recent episodes that the logger keeps


@dataclass(frozen=True)
class Fill:
    """Fill level of the training replay, relative to the nearer limit of steps or bytes."""

    items: int = 0
    capacity: int | None = None
    share: float | None = None
    ram_gb: float = 0.0
    disk_gb: float = 0.0


@dataclass(frozen=True)
class RunSummary:
    state: str
    reason: str = ""
    task: str = ""
    agent: str = ""
    folder: str = ""
    uptime_s: float = 0.0
    age_s: float = 0.0  # since the status was written
    step: int = 0
    steps: int | None = None
    updates: int = 0
    env_per_s: float = 0.0  # recent; the overall mean once the run has ended
    updates_per_s: float = 0.0
    eta_s: float | None = None
    train: EpisodeReturns = EpisodeReturns()
    evaluation: EpisodeReturns = EpisodeReturns()
    replay: Fill = Fill()
    limiter: str = ""
    first_update: str = ""  # progress towards the first update
    roles: tuple[RoleLine, ...] = ()
    restarts: int = 0
    event: str = ""

    @property
    def ended(self) -> bool:
        return self.state in (RunState.DONE, RunState.FAILED, DIED)

    @property
    def share(self) -> float | None:
        return min(1.0, self.step / self.steps) if self.steps else None

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def summarize(status: RunStatus, events: Sequence[Mapping[str, Any]] = (), now: float | None = None) -> RunSummary:
    """Summarize a status. At the start, all fields except the state may be missing."""
    run, pace = status.run or RunAbout(), status.pace
    agent, logger, replay = status.agent, status.logger, status.replay
    step = pace.step or (agent.actor and agent.actor.step) or 0
    updates = pace.updates or (agent.learner and agent.learner.updates) or 0
    steps = run.steps if run.steps and run.steps < ENDLESS else None
    env_per_s, updates_per_s = pace.env_per_s, pace.updates_per_s
    limiter, first_update = "", False
    if replay.limiter:
        limiter = _limiter(replay.limiter, env_per_s, updates_per_s * run.update_windows)
        first_update = replay.limiter.state is LimiterState.FIRST_UPDATE
    if status.state.ended and status.uptime_s > 0:
        env_per_s = max(0, step - run.before) / status.uptime_s
        updates_per_s = max(0, updates - run.updates_before) / status.uptime_s
    left = _left_s(step, steps, env_per_s, run.duration, status.uptime_s)
    return RunSummary(
        state=str(status.state),
        reason=status.reason,
        task=run.task,
        agent=run.agent,
        folder=run.folder,
        uptime_s=status.uptime_s,
        age_s=max(0.0, (now or time.time()) - status.time) if status.time is not None else 0.0,
        step=step,
        steps=steps,
        updates=updates,
        env_per_s=env_per_s,
        updates_per_s=updates_per_s,
        eta_s=left if status.state is RunState.RUNNING else None,
        train=_returns(logger, "train"),
        evaluation=_returns(logger, "eval"),
        replay=_fill(replay.replay, run),
        limiter=limiter,
        first_update=limiter if first_update else "",
        roles=tuple(_role_lines(status)),
        restarts=sum(role.restarts + getattr(role.status, "restarts", 0) for role in status.roles.values()),
        event=_last_event(events),
    )


def _left_s(step: int, steps: int | None, per_s: float, duration_s: float, uptime_s: float) -> float | None:
    left = []
    if steps and per_s > 0:
        left.append((steps - step) / per_s)
    if duration_s:
        left.append(duration_s - uptime_s)
    return max(0.0, min(left)) if left else None


def _returns(logger: LoggerReport, mode: str) -> EpisodeReturns:
    return EpisodeReturns(logger.episodes.get(mode, 0), logger.last_return.get(mode), logger.mean_return.get(mode))


def _fill(store: StoreReport, run: RunAbout) -> Fill:
    shares = [store.items / run.replay_size] if run.replay_size else []
    if run.replay_size_bytes:
        shares.append(1e9 * store.ram_gb / run.replay_size_bytes)
    share = min(1.0, max(shares)) if shares else None
    return Fill(store.items, run.replay_size, share, store.ram_gb, store.disk_gb)


def _limiter(limiter: LimiterReport, steps_per_s: float, windows_per_s: float) -> str:
    """Describe which side the limiter blocks, and for how long at the current speed of the other side."""
    state, missing = limiter.state, limiter.missing
    if state is LimiterState.OPEN or (state is None and limiter.waits_for == limiter_words(LimiterState.OPEN, 0, 0)):
        return "open"
    if state is None:  # written by an older version
        return limiter.waits_for
    words, per_s = limiter_words(state, missing, limiter.inserts), windows_per_s if state.holds_envs else steps_per_s
    if missing and per_s > 0:
        words = f"{words}, {roughly(missing / per_s)}"
    if state is LimiterState.FIRST_UPDATE:
        return words
    return f"blocks the {'environments' if state.holds_envs else 'learner'}: {words}"


def _role_lines(status: RunStatus) -> Iterator[RoleLine]:
    pace = status.pace
    for kind, title in ((RoleKind.ENV, "envs"), (RoleKind.EVAL_ENV, "eval envs")):
        if workers := status.of_kind(kind):
            yield _workers_line(title, workers, _shares(pace, kind, title))
    for role in status.of_kind(RoleKind.AGENT):
        for part, report in (("actor", role.status.actor), ("learner", role.status.learner)):
            usage = report.usage if report and part == "learner" else Usage()  # one process
            yield _line(part, role.state, _waiting(report), _shares(pace, part, part), usage)
    for name, role in status.roles.items():
        if role.kind not in (RoleKind.AGENT, *WORKERS):
            yield _line(name, role.state, _waiting(role.status), _shares(pace, name, name), role.status.usage)


def _workers_line(title: str, workers: Sequence[WorkerStatus], shares: Mapping[str, float]) -> RoleLine:
    states = [worker.state for worker in workers]
    most = max(set(states), key=states.count)
    state = most if states.count(most) == len(states) else f"{states.count(most)} of {len(states)} {most}"
    waiting: dict[str, float] = {}
    for worker in workers:
        for words, seconds in _waiting(worker.status).items():
            waiting[words] = max(seconds, waiting.get(words, 0.0))
    usage = [worker.status.usage for worker in workers]
    cpu = [one.cpu_percent for one in usage if one.cpu_percent is not None]
    ram = [one.ram_gb for one in usage if one.ram_gb is not None]
    total = Usage(cpu_percent=sum(cpu) if cpu else None, ram_gb=sum(ram) if ram else None)
    return _line(f"{title} x{len(workers)}", state, waiting, shares, total)


def _waiting(report: Report | None) -> Mapping[str, float]:
    """Return current waits as text. Older versions only have the text."""
    if report is None:
        return {}
    return {wait_words(one.wait, one.env): one.seconds for one in report.waits} or report.waiting


def _shares(pace: Pace, part: str, title: str) -> Mapping[str, float]:
    """Return the shares of a part's waits as text. `title` is the part's name in older versions."""
    return {wait_words(wait): share for wait, share in pace.shares.get(part, {}).items()} or pace.waits.get(title, {})


def _line(name: str, state: str, waiting: Mapping[str, float], shares: Mapping[str, float], usage: Usage) -> RoleLine:
    """Show a long current wait, or else the wait with the largest recent share."""
    now = max(waiting, key=lambda words: waiting[words], default="")
    lately = max(shares, key=lambda words: shares[words], default="")
    words = ""
    long = bool(now) and waiting[now] >= LONG_WAIT_S
    if long:
        words = f"{now} for {waiting[now]:.0f} s"
    elif lately and shares[lately] >= SHOWN_SHARE:
        words = f"{lately} {shares[lately]:.0%}"
    return RoleLine(name, str(state), words, long, usage.cpu_percent, usage.ram_gb)


def _last_event(events: Sequence[Mapping[str, Any]]) -> str:
    for event in reversed(events):
        if event.get("event") in NOTEWORTHY:
            detail = event.get("detail") or {}
            words = next((str(detail[key]) for key in WORDS if detail.get(key)), "")
            if event["event"] in (Event.SNAPSHOT, Event.RESTORE):
                words = f"of step {detail['step']}" if "step" in detail else str(detail.get("snapshot", ""))
            clock = time.strftime("%H:%M:%S", time.localtime(event.get("time", 0)))
            return " ".join(f"{clock} {event.get('role')}: {event['event']} {words}".split())
    return ""
