"""The format of `status.json`, the state of a run, which its supervisor writes about once a second.

A format number only ever gains fields. All fields except `state` are optional, because they are unknown at first.
Readers keep unknown fields. The texts in `waiting`, `wait_s`, `waits_for` and `reason` are for people and may change.
Programs should use the machine-readable fields instead.
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
    """The phase of a run, as set by its supervisor. See `runs.liveness` for whether the supervisor is alive."""

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
    """Base class of the parts of a status. Keeps unknown fields, which a newer version may have written."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    @property
    def is_empty(self) -> bool:
        """Whether no field is set, such as before the first report of a role."""
        return not self.model_fields_set


def _lenient(value: Any, handler: Handler) -> Any:
    """Return a report without its invalid fields, so that the rest of the status remains readable."""
    try:
        return handler(value or {})
    except ValidationError as error:
        wrong = {one["loc"][0] for one in error.errors() if one["loc"]}
        return handler({key: given for key, given in value.items() if key not in wrong} if wrong else {})


Lenient = WrapValidator(_lenient)
Number = int | float  # keeps counts as integers
Count = Annotated[int, BeforeValidator(lambda value: value or 0)]
Seconds = Annotated[float, BeforeValidator(lambda value: value or 0.0)]


class Usage(StatusModel):
    """Resource usage of a process. 100 percent is one core."""

    cpu_percent: float | None = None
    cpu_total_s: float | None = None
    ram_gb: float | None = None


class CurrentWait(StatusModel):
    """A wait in progress. `env` names the environment that causes it."""

    wait: Wait
    env: str = ""
    seconds: float = 0.0
    """Duration so far."""


class Report(StatusModel):
    """The fields that all parts of a fleet report."""

    clock_s: Seconds = 0.0
    """Time of collection, by a monotonic clock of the machine."""
    usage: Usage = Usage()
    waits: tuple[CurrentWait, ...] = ()
    waiting: dict[str, float] = {}
    """The same waits as text, with the seconds so far."""

    def longest_s(self, *waits: Wait) -> float:
        """Return the longest current duration of these waits, or 0.0."""
        return max((one.seconds for one in self.waits if one.wait in waits), default=0.0)

    def is_waiting_for(self, *waits: Wait) -> bool:
        return any(one.wait in waits for one in self.waits)


class ActorReport(Report):
    """The actor thread of the agent."""

    step: int | None = None
    envs: int | None = None
    """Environments that sent a message in the last seconds."""
    wait_s: dict[str, float] = {}
    """Total seconds until `replay` and `logger` accepted its messages."""
    policy_s: dict[str, int] = {}
    """Histogram of policy call durations (`dreamfleet.core.latency`)."""
    server: dict[str, Number] = {}


class LearnerReport(Report):
    """The learner thread of the agent."""

    updates: int | None = None
    waited_s: dict[Wait, float] = {}
    """Total seconds of each wait."""
    wait_s: dict[str, float] = {}
    """The same waits as text."""
    device_s: dict[str, float] = {}
    """Total seconds that the training device was `busy` and `idle`, if the agent measures it."""


class AgentReport(StatusModel):
    """The agent process. Its parts are present once they run."""

    about: dict[str, Any] = {}
    actor: Annotated[ActorReport, Lenient] | None = None
    learner: Annotated[LearnerReport, Lenient] | None = None


class LimiterReport(StatusModel):
    """The limiter that enforces the train ratio. `missing` counts steps or windows, depending on the state."""

    state: LimiterState | None = None
    missing: Count = 0
    waits_for: str = ""
    """The state as text."""
    inserts: Count = 0
    samples: Count = 0
    balance: float | None = None
    insert_wait_s: float | None = None
    sample_wait_s: float | None = None


class StoreReport(StatusModel):
    """The contents of the training replay."""

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
    """The logger process. Episodes and returns are grouped by mode, `train` or `eval`."""

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
    """Number of environment restarts after errors."""
    step_s: Seconds = 0.0
    actions_wait_s: float | None = None
    actions_s: dict[str, int] = {}
    """Histogram of the durations of waits for actions."""


class RoleStatus(StatusModel):
    """The supervisor's state of a role. `status` is the role's last report."""

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
    """Set the kind of each role. If it is missing, as in format 0, derive it from the name."""
    if not isinstance(roles, Mapping):
        return roles
    return {name: _with_kind(name, role) if isinstance(role, Mapping) else role for name, role in roles.items()}


def _with_kind(name: str, role: Mapping[str, Any]) -> dict[str, Any]:
    kind = role.get("kind", KIND_BY_NAME.get(name.partition("-")[0]))
    return {**role, "kind": RoleKind(kind) if kind in set(RoleKind) else RoleKind.OTHER}


KIND_BY_NAME = {"eval": RoleKind.EVAL_ENV, **{kind.value: kind for kind in RoleKind}}
Roles = Annotated[dict[str, Role], BeforeValidator(_with_kinds)]


class RunAbout(StatusModel):
    """Description of the run. `before` and `updates_before` are the initial counts of a resumed run."""

    task: str = ""
    agent: str = ""
    folder: str = ""
    steps: int | None = None
    """Agent steps after which the run ends."""
    duration: Seconds = 0.0
    """Seconds after which the run ends (0 = no limit)."""
    before: Count = 0
    updates_before: Count = 0
    update_windows: Seconds = 0.0
    """Windows that each update samples from replay."""
    replay_size: int | None = None
    replay_size_bytes: int | None = None


class Pace(StatusModel):
    """Progress of the run, and its throughput over the last 30 seconds."""

    step: Count = 0
    updates: Count = 0
    env_per_s: Seconds = 0.0
    updates_per_s: Seconds = 0.0
    shares: dict[str, dict[Wait, float]] = {}
    """Share of the time that each part (`actor`, `learner`, `replay`, `env`, `eval_env`) spent on each wait."""
    waits: dict[str, dict[str, float]] = {}
    """The same shares as text."""


class RunStatus(StatusModel):
    """The state of a run at one moment."""

    format: int = 0
    """Format number. 0 in files of versions before it was introduced."""
    time: float | None = None
    """Unix time at which it was written."""
    state: RunState
    reason: str = ""
    """Why the run ends, as text."""
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
        """Return the contents of `status.json`: the fields that are set, without defaults."""
        return self.model_dump(exclude_unset=True)


AnyReport = AgentReport | ReplayReport | LoggerReport | WorkerReport | Report


def read_report(kind: RoleKind, report: Mapping[str, Any]) -> AnyReport:
    """Parse the report of a role of this kind."""
    (role,) = read_roles({"": {"kind": kind, "status": report}}).values()
    return role.status


_ROLES: TypeAdapter[dict[str, Role]] = TypeAdapter(Roles)


def read_roles(roles: Mapping[str, Mapping[str, Any]]) -> dict[str, Role]:
    """Parse the statuses of roles by name."""
    return _ROLES.validate_python(roles)


def read_status(run: Path) -> RunStatus | None:
    """Return the status in a run folder, or None if it is missing or invalid."""
    try:
        return RunStatus.model_validate(json.loads((run / STATUS_FILE).read_bytes()))
    except (OSError, ValueError, RecursionError):  # ValueError includes validation errors of pydantic
        return None
