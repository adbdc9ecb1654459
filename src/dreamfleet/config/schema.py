"""Every configuration key with its type, default and meaning. Reading and writing it is left to `load`."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

AUTO_ADDRESS = "ipc://{auto},tcp://127.0.0.1:{auto}"


def _whole(value: Any) -> Any:
    """Lets 2e4 be an integer. A fraction goes on unchanged and is refused by the integer type."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return operator.index(value)  # NumPy integers
    return value


Whole = Annotated[int, BeforeValidator(_whole)]


class Group(BaseModel):
    """A part of the configuration: cannot be changed once built and refuses keys it does not know."""

    # Strict, because values arrive with a type: without it True would pass as 1 and "yes" as True.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class EnvGroup(Group):
    name: str = Field("dummy", min_length=1, description="Environment: a registered name such as dummy or SUITE:TASK.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of the environment's constructor.")


class AgentGroup(Group):
    name: str = Field("random", min_length=1, description="Agent: random, or package.module:factory.")


class ReplayGroup(Group):
    size: Whole = Field(5_000_000, ge=1, description="Steps that the training replay keeps; the eval replay a tenth.")
    online: bool = Field(True, description="Serve every fresh sequence once before sampling from the buffer.")


class RunGroup(Group):
    steps: Whole = Field(10_000_000_000, ge=1, description="Agent steps after which the run ends.")
    duration: float = Field(0.0, ge=0, description="Seconds after which the run ends; 0: no limit.")
    train_ratio: float = Field(
        32.0, description="Trained steps per collected step; 0 or less: as fast as the learner can, without a limit."
    )
    log_every: float = Field(120.0, description="Seconds between writes of metrics; 0: never, negative: always.")
    report_every: float = Field(300.0, description="Seconds between reports; 0: never, negative: always.")
    save_every: float = Field(900.0, description="Seconds between saves; 0: never, negative: always.")
    report_batches: Whole = Field(1, ge=1, description="Batches per report.")
    envs: Whole = Field(16, ge=0, description="Training environments.")
    eval_envs: Whole = Field(4, ge=0, description="Evaluation environments; their steps are never trained on.")
    envs_per_worker: Whole = Field(
        -1, ge=-1, description="Environments per worker process; -1 or 0: spread evenly over the cores."
    )
    episode_timeout: float = Field(
        180.0, gt=0, description="Seconds of silence after which an environment's unfinished episode is not counted."
    )
    actor_batch: Whole = Field(
        -1, ge=-1, description="Most environments in one policy call; -1 or 0: half of them. Fewer never wait for more."
    )
    actor_threads: Whole = Field(1, ge=1, description="Policy calls that may run at once.")
    actor_addr: str = Field(AUTO_ADDRESS, min_length=1, description="Where the actor listens; several by commas.")
    replay_addr: str = Field(AUTO_ADDRESS, min_length=1, description="Where replay listens; several by commas.")
    logger_addr: str = Field(AUTO_ADDRESS, min_length=1, description="Where the logger listens; several by commas.")
    agent_process: bool = Field(True, description="Run the agent as a process; false: as a thread of the launcher.")
    remote_envs: bool = Field(False, description="Start no environments here; they join from elsewhere.")
    remote_replay: bool = Field(False, description="Start no replay here; it joins from elsewhere.")
    start_timeout_s: float = Field(60.0, gt=0, description="Seconds that every role has to become ready.")
    stop_timeout_s: float = Field(
        10.0,
        gt=0,
        description="Seconds that a failed fleet has to stop, and after a run each kind of role, before it is killed.",
    )
    save_timeout_s: float = Field(
        60.0, gt=0, description="Seconds that the agent has for its last save when a run ends without a failure."
    )
    wait_timeout_s: float = Field(
        600.0, gt=0, description="Seconds that a role waits for another one's answer before the run fails."
    )

    @model_validator(mode="after")
    def _something_collects(self) -> Self:
        if self.envs == 0 and not self.remote_envs:
            raise ValueError(
                "run.envs=0 leaves nothing that collects steps: set run.envs to 1 or more, or run.remote_envs=true"
            )
        return self


class Sampling(Group):
    """What a batch looks like; the replay and the learner must agree on it."""

    seed: Whole = Field(0, ge=0, description="Seed of the agent; the environments' seeds derive from it.")
    batch_size: Whole = Field(16, ge=1, description="Sequences per batch.")
    batch_length: Whole = Field(64, ge=1, description="Steps per sequence of a training batch.")
    report_length: Whole = Field(32, ge=1, description="Steps per sequence of a report or eval batch.")
    consec_train: Whole = Field(1, ge=1, description="Consecutive training batches cut from one sample.")
    consec_report: Whole = Field(1, ge=1, description="Consecutive report batches cut from one sample.")
    replay_context: Whole = Field(1, ge=0, description="Context steps in front of each sample.")

    @property
    def sample_length(self) -> int:
        """Steps of the longest window that replay is asked for."""
        batches = max(self.batch_length * self.consec_train, self.report_length * self.consec_report)
        return batches + self.replay_context


class Config(Sampling):
    env: EnvGroup = Field(default_factory=EnvGroup, description="The environment.")
    agent: AgentGroup = Field(default_factory=AgentGroup, description="The agent.")
    replay: ReplayGroup = Field(default_factory=ReplayGroup, description="The replay buffer.")
    run: RunGroup = Field(default_factory=RunGroup, description="The fleet and how long it runs.")

    @model_validator(mode="after")
    def _replay_holds_a_sample(self) -> Self:
        if self.replay.size < self.sample_length:
            raise ValueError(
                f"replay.size={self.replay.size} is less than one sample of {self.sample_length} steps: "
                "set a larger replay.size or a smaller batch_length"
            )
        return self
