"""All configuration keys, with their types, defaults and meanings. `load` reads and writes them."""

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
    """Accept one number for both sides, a list of two, or the text "64,96"."""
    if isinstance(value, str):
        try:
            value = [int(part) for part in value.split(",")]
        except ValueError:
            raise ValueError(
                f"config key 'env.size' cannot be {value!r}: expected one number or two, such as 64,96"
            ) from None
    if isinstance(value, int):
        return (value, value)
    return tuple(value) if isinstance(value, list) else value


def _text_keys(value: Any) -> Any:
    """Convert keys to text. YAML reads the keys of a Tuple space's parts as numbers."""
    return {str(key): inner for key, inner in value.items()} if isinstance(value, dict) else value


class EnvGroup(Group):
    name: Annotated[str, TASK] = Field(
        "dummy", min_length=1, description="Environment: SUITE:TASK or package.module:factory."
    )
    kwargs: Annotated[dict[str, Any], TASK] = Field(
        default_factory=dict, description="Keyword arguments for the environment's constructor."
    )
    size: Annotated[tuple[Whole, Whole] | None, BeforeValidator(_pair), TASK] = Field(
        None,
        description="Height and width of images. Unset: the suite's size, or 64 x 64 if the encoder does not support "
        "an image's size.",
    )
    resize: Annotated[Literal["area", "bilinear"] | None, TASK] = Field(
        None, description="Resize method for images. Unset: the published one."
    )
    repeat: Annotated[Whole, TASK] = Field(
        0, ge=0, description="Environment steps per action (0 = the suite's default, or 1)."
    )
    time_limit: Annotated[Whole, TASK] = Field(
        0, ge=0, description="Truncate episodes after this many agent steps (0 = no limit)."
    )
    vector: bool = Field(
        False, description="Create all gym:ID environments of a worker in one call to gymnasium.make_vec."
    )
    read: Annotated[dict[str, Literal["image", "classes", "numbers"]], BeforeValidator(_text_keys), TASK] = Field(
        default_factory=dict,
        description="How to read Gymnasium observations, by key: image, classes or numbers. `check-env --spaces` shows "
        "the rules for other keys.",
    )
    drop: Annotated[Names, TASK] = Field((), description="Observations to drop, as names or globs, such as [mission].")
    text: Annotated[Counts, TASK] = Field(
        default_factory=dict,
        description="Text observations to encode, as names or globs with a number of bits, such as {mission: 128}.",
    )
    pad: Annotated[Counts, TASK] = Field(
        default_factory=dict,
        description="Sequence spaces to pad, as names or globs with a number of elements, such as {cars: 8}.",
    )
    clip: bool = Field(False, description="Clip observations to their declared bounds. NaN is still an error.")
    reward_weights: Annotated[Numbers, TASK] = Field(
        (), description="Weights for a reward with several components, such as [1, 0.1]."
    )
    wrappers: Annotated[Wrappers, TASK] = Field(
        (),
        description="Gymnasium wrappers, innermost first: module:Class or module:Class: {argument: value}.",
    )
    step_timeout_s: float = Field(
        60.0, gt=0, description="Report an environment step that takes longer than this many seconds."
    )
    restarts: Whole = Field(
        10,
        ge=0,
        description="Maximum restarts of an environment within restart_window_s before its worker fails.",
    )
    restart_window_s: float = Field(600.0, gt=0, description="Time window in seconds for counting restarts.")


class FracsGroup(Group):
    """Relative shares of the sampling methods. They need not add up to 1."""

    uniform: float = Field(1.0, ge=0, description="Share of samples drawn uniformly.")
    priority: float = Field(0.0, ge=0, description="Share of samples drawn by the agent's priorities.")
    recency: float = Field(0.0, ge=0, description="Share of samples drawn by age, favoring recent ones.")

    @model_validator(mode="after")
    def _check_total_is_positive(self) -> Self:
        if self.uniform + self.priority + self.recency <= 0:
            raise ValueError(
                "all replay.fracs are 0, so nothing can be sampled: set one of them, such as replay.fracs.uniform=1"
            )
        return self


class PrioGroup(Group):
    exponent: float = Field(0.8, ge=0, description="Exponent of priorities (0 = uniform).")
    maxfrac: float = Field(0.5, ge=0, le=1, description="Weight of a sequence's largest priority versus its mean.")
    initial: Annotated[float, BeforeValidator(infinity)] = Field(
        math.inf,
        ge=0,
        allow_inf_nan=True,
        description="Priority of untrained steps. With inf, sequences of only such steps are drawn first.",
    )
    zero_on_sample: bool = Field(True, description="Set the priority of sampled steps to 0 until the agent updates it.")


class ReplayGroup(Group):
    size: Whole = Field(
        5_000_000, ge=1, description="Capacity of the training replay in steps. The eval replay holds a tenth."
    )
    size_bytes: Whole = Field(
        0,
        ge=0,
        description="Memory limit of the training replay in bytes (0 = limited by size only). The eval "
        "replay gets a tenth.",
    )
    chunksize: Whole = Field(1024, ge=2, description="Steps per chunk, the unit of memory and file management.")
    online: bool = Field(True, description="Serve each new sequence once before sampling from the buffer.")
    fracs: FracsGroup = Field(default_factory=FracsGroup, description="Shares of the sampling methods.")
    prio: PrioGroup = Field(
        default_factory=PrioGroup, description="Prioritized sampling, used by replay.fracs.priority."
    )
    recexp: float = Field(1.0, ge=0, description="Sample weight is 1 / age ** recexp, used by replay.fracs.recency.")


class RunGroup(Group):
    steps: Whole = Field(10_000_000_000, ge=1, description="End the run after this many agent steps.")
    duration: float = Field(0.0, ge=0, description="End the run after this many seconds (0 = no limit).")
    goal: float | None = Field(
        None,
        description="End the run once the mean return of the last goal_episodes training episodes reaches this value. "
        "Unset: no goal.",
    )
    goal_episodes: Whole = Field(20, ge=1, description="Number of training episodes to average for goal.")
    script: Literal["parallel", "single"] = Field(
        "parallel",
        description="parallel: one process per role. single: one process in lock step, reproducible.",
    )
    train_ratio: float = Field(32.0, description="Trained steps per collected step (0 or less = unlimited).")
    log_every: float = Field(120.0, description="Write metrics every N seconds (0 = never, negative = always).")
    report_every: float = Field(300.0, description="Compute a report every N seconds (0 = never, negative = always).")
    save_every: float = Field(900.0, description="Save a snapshot every N seconds (0 = never, negative = always).")
    keep: Whole = Field(2, ge=1, description="Number of recent snapshots to keep. A run can resume from any of them.")
    keep_every: Whole = Field(0, ge=0, description="Keep one agent checkpoint every N steps forever (0 = off).")
    keep_best: Whole = Field(
        1, ge=0, description="Number of agent checkpoints to keep with the best mean return of training episodes."
    )
    from_checkpoint: Folder = Field(
        "", description="Run or snapshot folder to initialize a new run's agent from. Empty: random weights."
    )
    from_checkpoint_regex: str = Field(
        ".*", min_length=1, description="Regular expression for the names of arrays to load from from_checkpoint."
    )
    log_every_steps: Whole = Field(
        1000, ge=1, description="With script=single, write metrics every N agent steps. Replaces log_every."
    )
    report_every_steps: Whole = Field(
        10_000,
        ge=0,
        description="With script=single, compute a report every N agent steps (0 = never). Replaces report_every.",
    )
    report_batches: Whole = Field(1, ge=1, description="Batches per report.")
    envs: Whole = Field(16, ge=0, description="Number of training environments.")
    eval_envs: Whole = Field(
        4, ge=0, description="Number of evaluation environments. Their steps are never used for training."
    )
    envs_per_worker: Whole = Field(
        -1, ge=-1, description="Environments per worker process (-1 or 0 = spread evenly over the CPU cores)."
    )
    episode_timeout: float = Field(
        180.0, gt=0, description="Discard an environment's unfinished episode from the statistics after N idle seconds."
    )
    actor_batch: Whole = Field(
        -1,
        ge=-1,
        description="Maximum policy batch size (-1 or 0 = half the environments, or 16 with envs=0). "
        "Partial batches run immediately.",
    )
    prefetch: Whole = Field(
        -1,
        ge=-1,
        description="Training batches that the learner requests in advance (-1 or 0 = 3). "
        "A higher value means older batches.",
    )
    actor_threads: Whole = Field(1, ge=1, description="Maximum number of concurrent policy calls.")
    actor_addr: str = Field(AUTO_ADDRESS, min_length=1, description="Addresses of the actor, separated by commas.")
    replay_addr: str = Field(AUTO_ADDRESS, min_length=1, description="Addresses of replay, separated by commas.")
    logger_addr: str = Field(AUTO_ADDRESS, min_length=1, description="Addresses of the logger, separated by commas.")
    agent_process: bool = Field(
        True, description="Run the agent in its own process. false: in a thread of the launcher."
    )
    remote_envs: bool = Field(False, description="Start no environments on this machine. Remote workers provide them.")
    remote_replay: bool = Field(False, description="Start no replay on this machine. A remote process provides it.")
    start_timeout_s: float = Field(
        600.0, gt=0, description="Start-up timeout of each role in seconds. Includes compilation."
    )
    stop_timeout_s: float = Field(
        10.0,
        gt=0,
        description="Grace period in seconds before processes are killed: once for a failed fleet, and per "
        "kind of role "
        "at the end of a run.",
    )
    save_timeout_s: float = Field(
        60.0, gt=0, description="Timeout of the final save in seconds when a run ends without a failure."
    )
    wait_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Fail the run when a role waits this many seconds for another one. "
        "If run.train_ratio causes the wait, steps and updates restart the timeout.",
    )
    env_worker_restarts: Whole = Field(
        10, ge=0, description="Maximum restarts of each env worker within restart_window_s."
    )
    restart_window_s: float = Field(600.0, gt=0, description="Time window in seconds for counting env_worker_restarts.")
    max_restarts: Whole = Field(
        3, ge=0, description="Maximum restarts of the agent, the replay and the logger, each, during a run."
    )
    stall_timeout_s: float = Field(
        120.0, ge=0, description="Report a stall after N seconds without a heartbeat or progress (0 = never)."
    )
    stall_restart: bool = Field(False, description="Kill stalled roles so that they are restarted.")
    min_disk_gb: float = Field(
        1.0, ge=0, description="Warn and postpone snapshots when the run folder's disk has less free space than this."
    )

    @field_validator("from_checkpoint_regex")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(
                f"run.from_checkpoint_regex={value!r} is not a valid regular expression: {error}: "
                "use one such as world/dyn"
            ) from None
        return value

    @model_validator(mode="after")
    def _something_collects(self) -> Self:
        if self.envs == 0 and not self.remote_envs:
            raise ValueError(
                "run.envs=0 leaves no environments to collect steps: set run.envs to 1 or more, or run.remote_envs=true"
            )
        return self

    @model_validator(mode="after")
    def _fits_the_script(self) -> Self:
        if self.script == "single":
            if self.train_ratio <= 0:
                raise ValueError(
                    f"run.script=single needs a positive run.train_ratio, but it is {self.train_ratio:g}: set "
                    "run.train_ratio above 0, such as 32"
                )
            if self.report_every_steps % self.log_every_steps:
                raise ValueError(
                    f"run.report_every_steps={self.report_every_steps} must be a multiple of run.log_every_steps="
                    f"{self.log_every_steps}, because reports are written with the metrics: change one of them, or set "
                    "run.report_every_steps=0"
                )
            for key in ("remote_envs", "remote_replay"):
                if getattr(self, key):
                    raise ValueError(f"run.{key}=true is not supported with run.script=single: remove one of them")
        return self


Devices = Annotated[tuple[Whole, ...], BeforeValidator(as_tuple)]


class JaxGroup(Group):
    platform: Literal["auto", "cpu", "cuda", "tpu"] = Field(
        "auto", description="JAX platform. auto: the best one available."
    )
    compute_dtype: Literal["bfloat16", "float32", "float16"] = Field(
        "bfloat16", description="Data type of activations. Parameters and losses are float32."
    )
    train_devices: Devices = Field((0,), description="Training devices by index. The batch is split across them.")
    policy_devices: Devices = Field((0,), description="Policy device by index.")
    fsdp: bool = Field(False, description="Shard parameters across the training devices instead of replicating them.")
    accumulate: Whole = Field(1, ge=1, description="Number of gradient accumulation steps per batch.")
    rng: Literal["unsafe_rbg", "rbg", "threefry2x32"] = Field("unsafe_rbg", description="Random number generator.")
    unroll_observe: Whole = Field(0, ge=0, description="Unroll factor of the recurrent loop (0 = automatic).")
    unroll_imagine: Whole = Field(0, ge=0, description="Unroll factor of imagined rollouts (0 = automatic).")
    concurrent: bool = Field(True, description="With one GPU, run policy calls during updates instead of between them.")
    prealloc: bool = Field(True, description="Preallocate most of the GPU memory at start-up.")
    mock_devices: Whole = Field(0, ge=0, description="Simulate N devices on the CPU to test a device layout (0 = off).")
    cache: Folder = Field(
        "~/.cache/dreamfleet/compiled", description="Folder of the compilation cache. Empty: no cache."
    )


SINKS = ("jsonl", "tensorboard", "wandb", "mlflow")


def _known_sinks(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        return names
    for name in names:
        if name not in SINKS:
            hint = did_you_mean(closest_names(str(name), SINKS), f"choose from {', '.join(SINKS)}")
            raise ValueError(f"config key 'logger.sinks': unknown sink {name!r}: {hint}")
    return tuple(names)


class LoggerGroup(Group):
    sinks: Annotated[tuple[str, ...], BeforeValidator(_known_sinks)] = Field(
        ("tensorboard",),
        description="Metric sinks in addition to metrics.jsonl, which is always written: tensorboard, wandb, mlflow.",
    )
    video_every: float = Field(
        120.0, ge=0, description="Record a training and an evaluation video every N seconds (0 = never)."
    )
    keep_videos: Whole = Field(
        20, ge=0, description="Number of files of each kind to keep in videos/ (0 = write none)."
    )


class Sampling(Group):
    """The shape of a batch. The replay and the learner must use the same values."""

    seed: Whole = Field(0, ge=0, description="Seed of the agent. The environments' seeds are derived from it.")
    batch_size: Whole = Field(16, ge=1, description="Sequences per batch.")
    batch_length: Whole = Field(64, ge=1, description="Steps per sequence of a training batch.")
    report_length: Whole = Field(32, ge=1, description="Steps per sequence of a report or eval batch.")
    consec_train: Whole = Field(1, ge=1, description="Consecutive training batches cut from one sample.")
    consec_report: Whole = Field(1, ge=1, description="Consecutive report batches cut from one sample.")
    replay_context: Whole = Field(1, ge=0, description="Context steps before each sample.")

    @property
    def sample_length(self) -> int:
        """The longest sequence requested from replay, in steps."""
        batches = max(self.batch_length * self.consec_train, self.report_length * self.consec_report)
        return batches + self.replay_context


class Config(Sampling):
    env: EnvGroup = Field(default_factory=EnvGroup, description="The environment.")
    agent: AgentGroup = Field(default_factory=AgentGroup, description="The agent.")
    replay: ReplayGroup = Field(default_factory=ReplayGroup, description="The replay buffer.")
    run: RunGroup = Field(default_factory=RunGroup, description="The fleet and the length of the run.")
    jax: JaxGroup = Field(default_factory=JaxGroup, description="Devices and numerics.")
    logger: LoggerGroup = Field(default_factory=LoggerGroup, description="Sinks for metrics and videos.")

    @property
    def eval_sample_length(self) -> int:
        """The length of sequences requested from the eval replay, in steps."""
        return self.report_length * self.consec_report + self.replay_context

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        if problem := next(problems(self), None):
            raise ValueError(problem)
        return self
