"""What there is to say about a run at one moment, picked from its status. All that shows a run draws from this."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dreamfleet.core.context import SAY
from dreamfleet.core.events import Event
from dreamfleet.launch.view.words import roughly

ENDED = ("done", "failed", "died")
ENDLESS = 10**10  # the default of run.steps: no share of it is worth showing
FIRST_UPDATE = "before the first update"  # in the limiter's words
LONG_WAIT_S = 5.0  # from here on a wait is told by its seconds, whatever its share was
NOTEWORTHY = (
    *(Event.ENV_RESTART, Event.RESTART, Event.STALL, Event.RECOVERED, Event.DISCONNECT, Event.STEPS_LOST),
    *(Event.SNAPSHOT, Event.SAVE_FAILED, Event.RESTORE, Event.FAILURE, Event.STOP, Event.WARNING),
    *(Event.REFUSED, Event.SET_ASIDE, Event.WORKER_LOST, Event.RUN_LOST, Event.METRICS_REFUSED),
)
WORDS = ("message", "reason", "text", "error", SAY)  # where the details of an event have them


@dataclass(frozen=True)
class RoleLine:
    """One line of the table of roles. Env workers of a kind share one, however many there are."""

    name: str
    state: str
    waits: str = ""
    cpu_percent: float | None = None
    ram_gb: float | None = None


@dataclass(frozen=True)
class Returns:
    episodes: int = 0
    last: float | None = None
    mean: float | None = None  # of the last episodes, as many as the logger keeps


@dataclass(frozen=True)
class Fill:
    """How full the training replay is, against its limit of steps or of bytes, whichever is nearer."""

    items: int = 0
    capacity: int | None = None
    share: float | None = None
    ram_gb: float = 0.0
    disk_gb: float = 0.0


@dataclass(frozen=True)
class Digest:
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
    env_per_s: float = 0.0  # lately; of a run that has ended, over all of it
    updates_per_s: float = 0.0
    eta_s: float | None = None
    train: Returns = Returns()
    evaluation: Returns = Returns()
    replay: Fill = Fill()
    limiter: str = ""
    first_update: str = ""  # how far it is, before it is made
    roles: tuple[RoleLine, ...] = ()
    restarts: int = 0
    event: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def share(self) -> float | None:
        return min(1.0, self.step / self.steps) if self.steps else None

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def digest(status: Mapping[str, Any], events: Sequence[Mapping[str, Any]] = (), now: float | None = None) -> Digest:
    """`status` as the supervisor writes it; one of a fleet that only starts may lack anything but its state."""
    run = status.get("run") or {}
    roles = status.get("roles") or {}
    parts = {name: role.get("status") or {} for name, role in roles.items()}
    agent, logger, replay = (parts.get(name, {}) for name in ("agent", "logger", "replay"))
    pace = status.get("pace") or {}
    step = int(pace.get("step") or agent.get("actor", {}).get("step", 0))
    steps = run.get("steps")
    steps = int(steps) if steps and steps < ENDLESS else None
    updates = int(pace.get("updates") or agent.get("learner", {}).get("updates", 0))
    uptime_s, state = float(status.get("uptime_s", 0.0)), str(status["state"])
    env_per_s, updates_per_s = float(pace.get("env_per_s", 0.0)), float(pace.get("updates_per_s", 0.0))
    limiter = _limiter(replay.get("limiter", {}), env_per_s, updates_per_s * run.get("update_windows", 0.0))
    if state in ENDED and uptime_s > 0:
        env_per_s = max(0, step - run.get("before", 0)) / uptime_s
        updates_per_s = max(0, updates - run.get("updates_before", 0)) / uptime_s
    left = _left_s(step, steps, env_per_s, run.get("duration", 0.0), uptime_s)
    return Digest(
        state=state,
        reason=str(status.get("reason", "")),
        task=str(run.get("task", "")),
        agent=str(run.get("agent", "")),
        folder=str(run.get("folder", "")),
        uptime_s=uptime_s,
        age_s=max(0.0, (now or time.time()) - status["time"]) if "time" in status else 0.0,
        step=step,
        steps=steps,
        updates=updates,
        env_per_s=env_per_s,
        updates_per_s=updates_per_s,
        eta_s=left if state == "running" else None,
        train=_returns(logger, "train"),
        evaluation=_returns(logger, "eval"),
        replay=_fill(replay.get("replay", {}), run),
        limiter=limiter,
        first_update=limiter if FIRST_UPDATE in limiter else "",
        roles=tuple(_role_lines(roles, pace.get("waits", {}))),
        restarts=sum(int(one.get("restarts", 0)) for one in (*parts.values(), *roles.values())),
        event=_last_event(events),
    )


def _left_s(step: int, steps: int | None, per_s: float, duration_s: float, uptime_s: float) -> float | None:
    left = []
    if steps and per_s > 0:
        left.append((steps - step) / per_s)
    if duration_s:
        left.append(duration_s - uptime_s)
    return max(0.0, min(left)) if left else None


def _returns(logger: Mapping[str, Any], mode: str) -> Returns:
    episodes = int(logger.get("episodes", {}).get(mode, 0))
    return Returns(episodes, logger.get("last_return", {}).get(mode), logger.get("mean_return", {}).get(mode))


def _fill(stats: Mapping[str, Any], run: Mapping[str, Any]) -> Fill:
    items, ram_gb = int(stats.get("items", 0)), float(stats.get("ram_gb", 0.0))
    capacity, most_bytes = run.get("replay_size"), run.get("replay_size_bytes")
    shares = [items / capacity] if capacity else []
    if most_bytes:
        shares.append(1e9 * ram_gb / most_bytes)
    share = min(1.0, max(shares)) if shares else None
    return Fill(items, capacity, share, ram_gb, float(stats.get("disk_gb", 0.0)))


def _limiter(stats: Mapping[str, Any], steps_per_s: float, windows_per_s: float) -> str:
    """What it waits for is in the words of `replay.limiter`."""
    waits_for = str(stats.get("waits_for", ""))
    if waits_for in ("", "nothing"):
        return "open" if waits_for else ""
    holds_envs = waits_for.endswith("to be sampled")
    per_s, missing = windows_per_s if holds_envs else steps_per_s, stats.get("missing", 0)
    words = f"{waits_for}, {roughly(missing / per_s)}" if missing and per_s > 0 else waits_for
    if FIRST_UPDATE in words:
        return words
    return f"holds the {'environments' if holds_envs else 'learner'}: {words}"


def _role_lines(roles: Mapping[str, Mapping[str, Any]], shares: Mapping[str, Any]) -> Iterator[RoleLine]:
    for title, prefix in (("envs", "env-"), ("eval envs", "eval-")):
        workers = [role for name, role in roles.items() if name.startswith(prefix)]
        if workers:
            yield _workers_line(title, workers, shares.get(title, {}))
    agent = roles.get("agent")
    if agent:
        status = agent.get("status") or {}
        for part in ("actor", "learner"):
            waits = _waits(status.get(part, {}).get("waiting", {}), shares.get(part, {}))
            usage = status.get("learner", {}).get("usage", {}) if part == "learner" else {}  # one process
            yield RoleLine(part, str(agent["state"]), waits, usage.get("cpu_percent"), usage.get("ram_gb"))
    for name, role in roles.items():
        if name != "agent" and not name.startswith(("env-", "eval-")):
            status = role.get("status") or {}
            usage = status.get("usage", {})
            waits = _waits(status.get("waiting", {}), shares.get(name, {}))
            yield RoleLine(name, str(role["state"]), waits, usage.get("cpu_percent"), usage.get("ram_gb"))


def _workers_line(title: str, workers: list[Mapping[str, Any]], shares: Mapping[str, float]) -> RoleLine:
    states = [str(worker["state"]) for worker in workers]
    most = max(set(states), key=states.count)
    state = most if states.count(most) == len(states) else f"{states.count(most)} of {len(states)} {most}"
    statuses = [worker.get("status") or {} for worker in workers]
    waiting: dict[str, float] = {}
    for status in statuses:
        for name, seconds in status.get("waiting", {}).items():
            waiting[name] = max(seconds, waiting.get(name, 0.0))
    usage = [status["usage"] for status in statuses if "usage" in status]
    cpu, ram = (sum(one[key] for one in usage) if usage else None for key in ("cpu_percent", "ram_gb"))
    return RoleLine(f"{title} x{len(workers)}", state, _waits(waiting, shares), cpu, ram)


def _waits(current: Mapping[str, float], shares: Mapping[str, float]) -> str:
    """A long wait that goes on now, else the one that took most of the time lately."""
    long = {name: seconds for name, seconds in current.items() if seconds >= LONG_WAIT_S}
    if long:
        name = max(long, key=lambda name: long[name])
        return f"{name} for {long[name]:.0f} s"
    name = max(shares, key=lambda name: shares[name], default="")
    return f"{name} {shares[name]:.0%}" if name and shares[name] >= 0.01 else ""


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
