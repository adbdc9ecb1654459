"""The form of `status.json`: how a run stands, as its supervisor writes it about once a second.

Within a format, fields are only ever added. Every field but `state` may be missing: a fleet that starts knows little.
Readers keep fields that they do not know. The words in `waiting`, `wait_s`, `waits_for` and `reason` are for people and
may change; programs decide by the fields beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator
from pydantic import ValidatorFunctionWrapHandler as Handler

from dreamfleet.core.roles import RoleKind
from dreamfleet.core.waits import LimiterState, Wait

FORMAT = 1
STATUS_FILE = "status.json"


class RunState(StrEnum):
    """How far a run is, as its supervisor says. `runs.liveness` says whether that supervisor is still there."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in ENDED


ENDED = (RunState.DONE, RunState.FAILED)


class StatusModel(BaseModel):
    """A part of a status. Keeps what it does not know, which a newer version may have written."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known, as of a role that has not reported yet."""
        return not self.model_fields_set


def _lenient(value: Any, handler: Handler) -> Any:
    """Reads a report without the fields that cannot be understood: none may cost the run its status."""
    try:
        return handler(value or {})
    except ValidationError as error:
        wrong = {one["loc"][0] for one in error.errors() if one["loc"]}
        return handler({key: given for key, given in value.items() if key not in wrong} if wrong else {})


Lenient = WrapValidator(_lenient)
Number = int | float  # a count stays one
Count = Annotated[int, BeforeValidator(lambda value: value or 0)]
Seconds = Annotated[float, BeforeValidator(lambda value: value or 0.0)]


class Usage(StatusModel):
    """What a process uses of the machine; 100 percent is one core."""

    cpu_percent: float | None = None
    cpu_total_s: float | None = None
    ram_gb: float | None = None


class CurrentWait(StatusModel):
    """A wait that is in progress; `env` names an environment that takes the time."""

    wait: Wait
    env: str = ""
    seconds: float = 0.0
    """How long it has taken so far."""


class Report(StatusModel):
    """What all parts of a fleet report."""

    clock_s: Seconds = 0.0
    """When it was collected, by a clock of the machine that only runs forward."""
    usage: Usage = Usage()
    waits: tuple[CurrentWait, ...] = ()
    waiting: dict[str, float] = {}
    """The same in words, with the seconds so far."""

    def longest_s(self, *waits: Wait) -> float:
        """Return for how long one of these has been waited for; 0.0 if none of them is."""
        return max((one.seconds for one in self.waits if one.wait in waits), default=0.0)

    def is_waiting_for(self, *waits: Wait) -> bool:
        return any(one.wait in waits for one in self.waits)


class ActorReport(Report):
    """The actor thread of the agent."""

    step: int | None = None
    envs: int | None = None
    """Environments that it has heard of in the last seconds."""
    wait_s: dict[str, float] = {}
    """Seconds in all until `replay` and `logger` took its messages."""
    policy_s: dict[str, int] = {}
    """Numbers of policy calls by their duration, in bins (`dreamfleet.core.latency`)."""
    server: dict[str, Number] = {}


class LearnerReport(Report):
    """The learner thread of the agent."""

    updates: int | None = None
    waited_s: dict[Wait, float] = {}
    """Seconds waited in all."""
    wait_s: dict[str, float] = {}
    """The same in words."""
    device_s: dict[str, float] = {}
    """Seconds in all that the training device was `busy` and `idle`, where the agent measures it."""


class AgentReport(StatusModel):
    """The agent process. Its parts appear once they run."""

    about: dict[str, Any] = {}
    actor: Annotated[ActorReport, Lenient] | None = None
    learner: Annotated[LearnerReport, Lenient] | None = None


class LimiterReport(StatusModel):
    """What keeps the train ratio. `missing` are steps or windows, depending on the state."""

    state: LimiterState | None = None
    missing: Count = 0
    waits_for: str = ""
    """The state in words."""
    inserts: Count = 0
    samples: Count = 0
    balance: float | None = None
    insert_wait_s: float | None = None
    sample_wait_s: float | None = None


class StoreReport(StatusModel):
    """What replay holds of the training steps."""

    items: Count = 0
    ram_gb: Seconds = 0.0
    disk_gb: Seconds = 0.0


class ReplayReport(Report):
    """The replay process."""

    replay: Annotated[StoreReport, Lenient] = StoreReport()
    eval_items: Count = 0
    limiter: Annotated[LimiterReport, Lenient] | None = None
    server: dict[str, Number] = {}


class LoggerReport(Report):
    """The logger process. Episodes and returns are by mode, `train` or `eval`."""

    episodes: dict[str, int] = {}
    last_return: dict[str, float | None] = {}
    mean_return: dict[str, float | None] = {}
    server: dict[str, Number] = {}


class WorkerReport(Report):
    """An env worker."""

    mode: str = ""
    envs: Count = 0
    steps: Count = 0
    restarts: Count = 0
    """Restarts of environments after errors."""
    step_s: Seconds = 0.0
    actions_wait_s: float | None = None
    actions_s: dict[str, int] = {}
    """Numbers of waits for actions by their duration, in bins."""


class RoleStatus(StatusModel):
    """One role, as the supervisor sees it; `status` is its own last report."""

    state: str = RunState.STARTING
    pid: int | None = None
    uptime_s: Seconds = 0.0
    report_age_s: Seconds = 0.0
    restarts: Count = 0


class AgentStatus(RoleStatus):
    kind: Literal[RoleKind.AGENT] = RoleKind.AGENT
    status: Annotated[AgentReport, Lenient] = AgentReport()


class ReplayStatus(RoleStatus):
    kind: Literal[RoleKind.REPLAY] = RoleKind.REPLAY
    status: Annotated[ReplayReport, Lenient] = ReplayReport()


class LoggerStatus(RoleStatus):
    kind: Literal[RoleKind.LOGGER] = RoleKind.LOGGER
    status: Annotated[LoggerReport, Lenient] = LoggerReport()


class WorkerStatus(RoleStatus):
    kind: Literal[RoleKind.ENV, RoleKind.EVAL_ENV] = RoleKind.ENV
    status: Annotated[WorkerReport, Lenient] = WorkerReport()


class OtherStatus(RoleStatus):
    kind: Literal[RoleKind.SINGLE, RoleKind.OTHER] = RoleKind.OTHER
    status: Annotated[Report, Lenient] = Report()


Role = Annotated[AgentStatus | ReplayStatus | LoggerStatus | WorkerStatus | OtherStatus, Field(discriminator="kind")]


def _with_kinds(roles: Any) -> Any:
    """Give each role its kind. Where there is none, as in a status of format 0, its name tells it."""
    if not isinstance(roles, Mapping):
        return roles
    return {name: _with_kind(name, role) if isinstance(role, Mapping) else role for name, role in roles.items()}


def _with_kind(name: str, role: Mapping[str, Any]) -> dict[str, Any]:
    kind = role.get("kind", KIND_BY_NAME.get(name.partition("-")[0]))
    return {**role, "kind": RoleKind(kind) if kind in set(RoleKind) else RoleKind.OTHER}


KIND_BY_NAME = {"eval": RoleKind.EVAL_ENV, **{kind.value: kind for kind in RoleKind}}
Roles = Annotated[dict[str, Role], BeforeValidator(_with_kinds)]


class RunAbout(StatusModel):
    """What is run. `before` and `updates_before` are the counts that a continued run began with."""

    task: str = ""
    agent: str = ""
    folder: str = ""
    steps: int | None = None
    """Agent steps at which the run ends."""
    duration: Seconds = 0.0
    """Seconds after which the run ends; 0 is endless."""
    before: Count = 0
    updates_before: Count = 0
    update_windows: Seconds = 0.0
    """Windows that one update samples from replay."""
    replay_size: int | None = None
    replay_size_bytes: int | None = None


class Pace(StatusModel):
    """How far the run is, and its speed over the last half minute."""

    step: Count = 0
    updates: Count = 0
    env_per_s: Seconds = 0.0
    updates_per_s: Seconds = 0.0
    shares: dict[str, dict[Wait, float]] = {}
    """The share of the time that each part (`actor`, `learner`, `replay`, `env`, `eval_env`) spent on each wait."""
    waits: dict[str, dict[str, float]] = {}
    """The same in words."""


class RunStatus(StatusModel):
    """How a run stands at one moment."""

    format: int = 0
    """Number of the format; 0 in files of versions that did not number it."""
    time: float | None = None
    """When it was written, in seconds since 1970."""
    state: RunState
    reason: str = ""
    """Why the run ends, in words."""
    uptime_s: Seconds = 0.0
    run: RunAbout | None = None
    pace: Pace = Pace()
    roles: Roles = {}

    def of_kind(self, *kinds: RoleKind) -> list[Any]:
        """Return the roles of these kinds."""
        return [role for role in self.roles.values() if role.kind in kinds]

    @property
    def agent(self) -> AgentReport:
        return next((role.status for role in self.of_kind(RoleKind.AGENT)), AgentReport())

    @property
    def replay(self) -> ReplayReport:
        return next((role.status for role in self.of_kind(RoleKind.REPLAY)), ReplayReport())

    @property
    def logger(self) -> LoggerReport:
        return next((role.status for role in self.of_kind(RoleKind.LOGGER)), LoggerReport())

    def given(self) -> dict[str, Any]:
        """Return what `status.json` holds: the fields that were given, and no defaults."""
        return self.model_dump(exclude_unset=True)


AnyReport = AgentReport | ReplayReport | LoggerReport | WorkerReport | Report


def read_report(kind: RoleKind, report: Mapping[str, Any]) -> AnyReport:
    """Return what a role of this kind reports."""
    (role,) = read_roles({"": {"kind": kind, "status": report}}).values()
    return role.status


_ROLES: TypeAdapter[dict[str, Role]] = TypeAdapter(Roles)


def read_roles(roles: Mapping[str, Mapping[str, Any]]) -> dict[str, Role]:
    """Return roles by name from what is known of each."""
    return _ROLES.validate_python(roles)


def read_status(run: Path) -> RunStatus | None:
    """Return the newest status in a run folder; None if there is none that can be read."""
    try:
        return RunStatus.model_validate(json.loads((run / STATUS_FILE).read_bytes()))
    except (OSError, ValueError, RecursionError):  # of pydantic, too
        return None
