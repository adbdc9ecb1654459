"""The flat arguments of `combined` and the `parallel_*` functions. Their names match the configuration."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dreamfleet.config.base import Folder, Whole
from dreamfleet.config.errors import closest_key, explain, unknown_key
from dreamfleet.config.schema import Config, EnvGroup, LoggerGroup, RunGroup, Sampling
from dreamfleet.core.errors import ConfigError

_ENV = EnvGroup()
_LOGGER = LoggerGroup()
ACT_ALIKE = ("dreamer", "random")  # agents whose default policy is the same in training and evaluation
JOINING_ROWS = 16  # policy batch size if all environments are remote, whose number is unknown
PREFETCH = 3  # two batches in flight during an update
PUBLISHED_ONLY = ("debug", "eval_eps", "usage")  # keys in the `run` group of the published code without an effect here


class FleetArgs(RunGroup, Sampling):
    """The keys of `run`, the batch shape, the keys of `env` that workers need, and the run's folder and replica."""

    logdir: Folder = Field("", description="The run folder. Empty: a standalone role that writes no files.")
    public_keys: dict[str, str] = Field({}, description="The result of create_keys, for roles on other machines.")
    env_step_timeout_s: float = Field(_ENV.step_timeout_s, gt=0, description="Same as env.step_timeout_s.")
    env_restarts: Whole = Field(_ENV.restarts, ge=0, description="Same as env.restarts.")
    env_restart_window_s: float = Field(_ENV.restart_window_s, gt=0, description="Same as env.restart_window_s.")
    env_quick: bool = Field(False, description="Whether an environment step is faster than a message.")
    eval_apart: bool = Field(True, description="Whether evaluation needs separate policy calls.")
    logger_video_every: float = Field(_LOGGER.video_every, ge=0, description="Same as logger.video_every.")
    replica: Whole = Field(0, ge=0, description="Index of this learner replica.")
    replicas: Whole = Field(1, ge=1, description="Number of learner replicas.")
    clock_addr: str = Field("", description="Address of replica 0's clock. Required with several replicas.")
    restarted: Literal["", "alone", "together"] = Field(
        "", description="How this role was restarted in a running fleet."
    )
    life: Whole = Field(0, ge=0, description="Incarnation of this role. Environment seeds depend on it.")

    @model_validator(mode="after")
    def _replica_exists(self) -> Self:
        if self.replica >= self.replicas:
            raise ValueError(
                f"replica={self.replica} is out of range for replicas={self.replicas}: use 0 to {self.replicas - 1}"
            )
        if self.replicas > 1 and not self.clock_addr:
            raise ValueError("several replicas need a shared clock: set clock_addr to tcp://HOST:PORT of replica 0")
        return self

    @property
    def actor_rows(self) -> int:
        """The maximum policy batch size, which also limits the environments in a worker's message."""
        if self.actor_batch > 0:
            return self.actor_batch
        return max(1, self.envs // 2) if self.envs else JOINING_ROWS

    @property
    def batches_ahead(self) -> int:
        """The number of training batches to request in advance."""
        return self.prefetch if self.prefetch > 0 else PREFETCH

    @classmethod
    def from_config(cls, config: Config, logdir: str | PathLike[str]) -> Self:
        sampling = {key: getattr(config, key) for key in Sampling.model_fields}
        env = {f"env_{key}": getattr(config.env, key) for key in ("step_timeout_s", "restarts", "restart_window_s")}
        others: dict[str, Any] = {
            "logger_video_every": config.logger.video_every,
            "eval_apart": config.agent.best_eval_action or config.agent.name not in ACT_ALIKE,
            "logdir": fspath(logdir),
        }
        return cls(**sampling, **dict(config.run), **env, **others)

    @classmethod
    def coerce(cls, args: Any) -> Self:
        """Convert `args`: a `FleetArgs`, a mapping, or any object with some of the keys as attributes.

        Missing keys get their defaults. Other attributes are ignored. Other keys of a mapping are ignored with a
        warning. An unknown key of a plain mapping that resembles a known one raises an error.
        """
        if isinstance(args, cls):
            return args
        if isinstance(args, Config):
            raise TypeError("a Config is nested and has no run folder: pass FleetArgs.from_config(config, logdir)")
        known = list(cls.model_fields)
        if isinstance(args, Mapping):
            _check_other_keys(args, known)
            values = {key: args[key] for key in args if key in known}
        else:
            values = {key: getattr(args, key) for key in known if hasattr(args, key)}
        try:
            return cls(**values)
        except ValidationError as error:
            raise explain(error) from None


def _check_other_keys(args: Mapping[Any, Any], known: Sequence[str]) -> None:
    """Warn about unknown keys. Raise an error for a key that looks misspelled.

    Only a plain mapping is checked for misspellings. A configuration object, which also has its keys as attributes,
    may contain similar keys of another program.
    """
    others = sorted(str(key) for key in args if key not in known)
    if "run" in others and isinstance(args["run"], Mapping):
        raise ConfigError(
            "args has a nested group 'run': pass its keys flat, such as dict(**config['run'], logdir='runs/one')"
        )
    if "server_public" in others:
        raise ConfigError("args.server_public was renamed: set args.public_keys to the result of create_keys")
    if not all(hasattr(args, str(key)) for key in args):
        for key in others:
            if key not in PUBLISHED_ONLY and closest_key(key, known):
                raise unknown_key(key, known)
    if others:
        are, it = ("is", "it") if len(others) == 1 else ("are", "them")
        # Attribute the warning to this line, so that Python shows it once for all roles of a process.
        warnings.warn(f"args: {', '.join(others)} {are} ignored: no role of a fleet reads {it}", stacklevel=1)
