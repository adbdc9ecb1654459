"""Every configuration key with its type, default and meaning. Reading and writing it is left to `load`."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from dreamfleet.config.agent import AgentGroup
from dreamfleet.config.base import TASK, Folder, Group, Whole, as_tuple, infinity
from dreamfleet.config.checks import problems
from dreamfleet.config.lists import Counts, Names, Numbers, Wrappers
from dreamfleet.core.text.suggestions import closest_names, did_you_mean

AUTO_ADDRESS = "ipc://{auto},tcp://127.0.0.1:{auto}"


def _pair(value: Any) -> Any:
    """One number is both; two are a list, or as messages write them: 64,96."""
    if isinstance(value, str):
        try:
            value = [int(part) for part in value.split(",")]
        except ValueError:
            raise ValueError(
                f"config key 'env.size' cannot be {value!r}: expected one number or two, as 64,96"
            ) from None
    if isinstance(value, int):
        return (value, value)
    return tuple(value) if isinstance(value, list) else value


def _text_keys(value: Any) -> Any:
    """The parts of a Tuple are numbered, which YAML reads as numbers."""
    return {str(key): inner for key, inner in value.items()} if isinstance(value, dict) else value


class EnvGroup(Group):
    name: Annotated[str, TASK] = Field(
        "dummy", min_length=1, description="Environment: SUITE:TASK, or package.module:factory."
    )
    kwargs: Annotated[dict[str, Any], TASK] = Field(
        default_factory=dict, description="Arguments of the environment's constructor."
    )
    size: Annotated[tuple[Whole, Whole] | None, BeforeValidator(_pair), TASK] = Field(
        None,
        description="Height and width of images; unset: the suite's own, else 64 x 64 where an image is of another "
        "size than the encoder takes.",
    )
    resize: Annotated[Literal["area", "bilinear"] | None, TASK] = Field(
        None, description="How images are resized; unset: as published."
    )
    repeat: Annotated[Whole, TASK] = Field(
        0, ge=0, description="Environment steps per action; 0: the suite's own, else 1."
    )
    time_limit: Annotated[Whole, TASK] = Field(
        0, ge=0, description="Agent steps after which an episode is truncated; 0: no limit."
    )
    vector: bool = Field(
        False, description="Make gym:ID by gymnasium.make_vec: all of a worker's environments at once."
    )
    read: Annotated[dict[str, Literal["image", "classes", "numbers"]], BeforeValidator(_text_keys), TASK] = Field(
        default_factory=dict,
        description="How observations of Gymnasium are read, by key: image, classes or numbers; else by the rules that "
        "`check-env --spaces` shows.",
    )
    drop: Annotated[Names, TASK] = Field(
        (), description="Observations to leave out, by their names or globs, such as [mission]."
    )
    text: Annotated[Counts, TASK] = Field(
        default_factory=dict,
        description="Texts to encode, by their names or globs, and in how many bits, such as {mission: 128}.",
    )
    pad: Annotated[Counts, TASK] = Field(
        default_factory=dict,
        description="Sequence spaces to pad, by their names or globs, and to how many elements, such as {cars: 8}.",
    )
    clip: bool = Field(False, description="Clip observations into their declared bounds; NaN stays an error.")
    reward_weights: Annotated[Numbers, TASK] = Field(
        (), description="Weights of a reward with several parts, such as [1, 0.1]."
    )
    wrappers: Annotated[Wrappers, TASK] = Field(
        (),
        description="Wrappers of Gymnasium, the innermost first: module:Class, or module:Class: {argument: value}.",
    )
    step_timeout_s: float = Field(60.0, gt=0, description="Seconds after which a step that has not ended is reported.")
    restarts: Whole = Field(
        10,
        ge=0,
        description="How often an environment may raise an error within restart_window_s before its worker gives up.",
    )
    restart_window_s: float = Field(600.0, gt=0, description="Seconds for which a restart counts against restarts.")


class FracsGroup(Group):
    """Only their proportions count."""

    uniform: float = Field(1.0, ge=0, description="Share of samples drawn uniformly.")
    priority: float = Field(0.0, ge=0, description="Share of samples drawn by the priorities that the agent writes.")
    recency: float = Field(0.0, ge=0, description="Share of samples drawn by age, the newest most often.")

    @model_validator(mode="after")
    def _something_is_drawn(self) -> Self:
        if self.uniform + self.priority + self.recency <= 0:
            raise ValueError("replay.fracs are all 0 and draw nothing: set one of them, such as replay.fracs.uniform=1")
        return self


class PrioGroup(Group):
    exponent: float = Field(0.8, ge=0, description="Power that a priority is raised to; 0: all alike.")
    maxfrac: float = Field(0.5, ge=0, le=1, description="Weight of a window's largest priority against its mean.")
    initial: Annotated[float, BeforeValidator(infinity)] = Field(
        math.inf,
        ge=0,
        allow_inf_nan=True,
        description="Priority of a step never trained on; inf: what has only such steps is drawn first.",
    )
    zero_on_sample: bool = Field(True, description="A sampled step loses its priority until it is written again.")


class ReplayGroup(Group):
    size: Whole = Field(5_000_000, ge=1, description="Steps that the training replay keeps; the eval replay a tenth.")
    size_bytes: Whole = Field(
        0, ge=0, description="Memory that the training replay may take, the eval replay a tenth; 0: no limit but size."
    )
    chunksize: Whole = Field(1024, ge=2, description="Steps per chunk, the unit in which memory and files are managed.")
    online: bool = Field(True, description="Serve every fresh sequence once before sampling from the buffer.")
    fracs: FracsGroup = Field(default_factory=FracsGroup, description="How samples are drawn.")
    prio: PrioGroup = Field(default_factory=PrioGroup, description="Priorities, for replay.fracs.priority.")
    recexp: float = Field(1.0, ge=0, description="A sample's weight is 1 / age ** recexp, for replay.fracs.recency.")


class RunGroup(Group):
    steps: Whole = Field(10_000_000_000, ge=1, description="Agent steps after which the run ends.")
    duration: float = Field(0.0, ge=0, description="Seconds after which the run ends; 0: no limit.")
    goal: float | None = Field(
        None, description="Mean return of the last goal_episodes training episodes at which the run ends; unset: none."
    )
    goal_episodes: Whole = Field(20, ge=1, description="Episodes whose mean return is compared with goal.")
    script: Literal["parallel", "single"] = Field(
        "parallel",
        description="parallel: every role a process; single: all in one process in lock step, the same every time.",
    )
    train_ratio: float = Field(
        32.0, description="Trained steps per collected step; 0 or less: as fast as the learner can, without a limit."
    )
    log_every: float = Field(120.0, description="Seconds between writes of metrics; 0: never, negative: always.")
    report_every: float = Field(300.0, description="Seconds between reports; 0: never, negative: always.")
    save_every: float = Field(900.0, description="Seconds between saves; 0: never, negative: always.")
    keep: Whole = Field(2, ge=1, description="Newest snapshots that are kept, each of which the run can continue from.")
    keep_every: Whole = Field(
        0, ge=0, description="Of every so many steps the agent of one snapshot is kept for ever; 0: of none."
    )
    keep_best: Whole = Field(
        1, ge=0, description="Snapshots whose agent is kept because training episodes had the best mean return then."
    )
    from_checkpoint: Folder = Field(
        "", description="Run or snapshot folder whose agent a run that begins starts from; empty: from random weights."
    )
    from_checkpoint_regex: str = Field(
        ".*", min_length=1, description="Which arrays are taken from from_checkpoint, by their names; .*: all of them."
    )
    log_every_steps: Whole = Field(
        1000, ge=1, description="With script=single, agent steps between writes of metrics, instead of log_every."
    )
    report_every_steps: Whole = Field(
        10_000,
        ge=0,
        description="With script=single, agent steps between reports, instead of report_every; 0: never.",
    )
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
        -1,
        ge=-1,
        description="Most environments in one policy call; -1 or 0: half of them, or 16 with envs=0. "
        "Fewer never wait for more.",
    )
    prefetch: Whole = Field(
        -1, ge=-1, description="Train batches that the learner asks for ahead; -1 or 0: 3. More wait longer to be used."
    )
    actor_threads: Whole = Field(1, ge=1, description="Policy calls that may run at once.")
    actor_addr: str = Field(AUTO_ADDRESS, min_length=1, description="Where the actor listens; several by commas.")
    replay_addr: str = Field(AUTO_ADDRESS, min_length=1, description="Where replay listens; several by commas.")
    logger_addr: str = Field(AUTO_ADDRESS, min_length=1, description="Where the logger listens; several by commas.")
    agent_process: bool = Field(True, description="Run the agent as a process; false: as a thread of the launcher.")
    remote_envs: bool = Field(False, description="Start no environments here; they join from elsewhere.")
    remote_replay: bool = Field(False, description="Start no replay here; it joins from elsewhere.")
    start_timeout_s: float = Field(
        600.0, gt=0, description="Seconds that every role has to become ready; the agent compiles in that time."
    )
    stop_timeout_s: float = Field(
        10.0,
        gt=0,
        description="Seconds that a failed fleet has to stop, and after a run each kind of role, before it is killed.",
    )
    save_timeout_s: float = Field(
        60.0, gt=0, description="Seconds that the agent has for its last save when a run ends without a failure."
    )
    wait_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Seconds that a role waits for another one's answer before the run fails; "
        "where run.train_ratio holds it back, seconds without a step or an update.",
    )
    env_worker_restarts: Whole = Field(
        10, ge=0, description="Times that each env worker that died is started again within restart_window_s."
    )
    restart_window_s: float = Field(600.0, gt=0, description="Seconds in which env_worker_restarts are counted.")
    max_restarts: Whole = Field(
        3, ge=0, description="Times that agent, replay and logger are each started again after they died, in a run."
    )
    stall_timeout_s: float = Field(
        120.0, ge=0, description="Seconds without a report or without progress after which a stall is told; 0: never."
    )
    stall_restart: bool = Field(False, description="Kill a role that stalls, so that it is started again.")
    min_disk_gb: float = Field(
        1.0, ge=0, description="Free space of the run folder below which the run warns, and puts snapshots off."
    )

    @field_validator("from_checkpoint_regex")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(
                f"run.from_checkpoint_regex={value!r} is no regular expression: {error}: write one such as world/dyn"
            ) from None
        return value

    @model_validator(mode="after")
    def _something_collects(self) -> Self:
        if self.envs == 0 and not self.remote_envs:
            raise ValueError(
                "run.envs=0 leaves nothing that collects steps: set run.envs to 1 or more, or run.remote_envs=true"
            )
        return self

    @model_validator(mode="after")
    def _fits_the_script(self) -> Self:
        if self.script == "single":
            if self.train_ratio <= 0:
                raise ValueError(
                    f"run.script=single trains as often as run.train_ratio says, and {self.train_ratio:g} says without "
                    "end: set run.train_ratio above 0, such as 32"
                )
            if self.report_every_steps % self.log_every_steps:
                raise ValueError(
                    f"run.report_every_steps={self.report_every_steps} must be a multiple of run.log_every_steps="
                    f"{self.log_every_steps}, with which its figures are written: set one of them to a multiple, or "
                    "run.report_every_steps=0"
                )
            for key in ("remote_envs", "remote_replay"):
                if getattr(self, key):
                    raise ValueError(f"run.{key}=true has no place in one process: leave it out with run.script=single")
        return self


Devices = Annotated[tuple[Whole, ...], BeforeValidator(as_tuple)]


class JaxGroup(Group):
    platform: Literal["auto", "cpu", "cuda", "tpu"] = Field("auto", description="auto: the best that JAX finds.")
    compute_dtype: Literal["bfloat16", "float32", "float16"] = Field(
        "bfloat16", description="Of activations; parameters and losses are float32."
    )
    train_devices: Devices = Field((0,), description="Devices that train, by number; the batch is split over them.")
    policy_devices: Devices = Field((0,), description="Device that acts.")
    fsdp: bool = Field(False, description="Split parameters over the training devices instead of copying them.")
    accumulate: Whole = Field(1, ge=1, description="Parts of a batch whose gradients are computed one after the other.")
    rng: Literal["unsafe_rbg", "rbg", "threefry2x32"] = Field("unsafe_rbg", description="Random number generator.")
    unroll_observe: Whole = Field(0, ge=0, description="Steps of the recurrent loop compiled as one; 0: as suits.")
    unroll_imagine: Whole = Field(0, ge=0, description="Steps of a rollout compiled as one; 0: as suits.")
    concurrent: bool = Field(True, description="On one GPU, act while an update is computed instead of after it.")
    prealloc: bool = Field(True, description="Take most of the GPU's memory at the start.")
    mock_devices: Whole = Field(0, ge=0, description="Pretend that the CPU is so many devices, to try a layout; 0: no.")
    cache: Folder = Field(
        "~/.cache/dreamfleet/compiled", description="Folder for compiled functions; empty: compile anew every time."
    )


SINKS = ("jsonl", "tensorboard", "wandb", "mlflow")


def _known_sinks(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        return names
    for name in names:
        if name not in SINKS:
            hint = did_you_mean(closest_names(str(name), SINKS), f"there are {', '.join(SINKS)}")
            raise ValueError(f"config key 'logger.sinks': unknown sink {name!r}: {hint}")
    return tuple(names)


class LoggerGroup(Group):
    sinks: Annotated[tuple[str, ...], BeforeValidator(_known_sinks)] = Field(
        ("tensorboard",),
        description="Where metrics go beside metrics.jsonl, which is always written: tensorboard, wandb, mlflow.",
    )
    video_every: float = Field(
        120.0, ge=0, description="Seconds between videos of an episode, of training and of evaluation each; 0: never."
    )
    keep_videos: Whole = Field(
        20, ge=0, description="Files of each kind in videos/, of which the oldest are deleted; 0: write none."
    )


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
    jax: JaxGroup = Field(default_factory=JaxGroup, description="The devices and how they compute.")
    logger: LoggerGroup = Field(default_factory=LoggerGroup, description="Where metrics and videos go.")

    @property
    def eval_sample_length(self) -> int:
        """Steps of the windows that the eval replay is asked for."""
        return self.report_length * self.consec_report + self.replay_context

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        if problem := next(problems(self), None):
            raise ValueError(problem)
        return self
