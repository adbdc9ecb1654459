"""The flat arguments that `combined` and the `parallel_*` functions take, under the names of the configuration."""

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
ACT_ALIKE = ("dreamer", "random")  # agents that do the same in training and evaluation, if not told otherwise
JOINING_ROWS = 16  # environments in a policy call where all of them join from elsewhere, however many there are
PREFETCH = 3  # two batches arrive while one is trained on
PUBLISHED_ONLY = ("debug", "eval_eps", "usage")  # keys of the published code's `run` group that a fleet does not use


class FleetArgs(RunGroup, Sampling):
    """Every key of `run`, the shape of the batches, what workers need of `env`, and which run and replica this is."""

    logdir: Folder = Field("", description="The run folder. Empty for a role that runs by itself and writes no files.")
    public_keys: dict[str, str] = Field({}, description="What create_keys returned, for a role on another machine.")
    env_step_timeout_s: float = Field(_ENV.step_timeout_s, gt=0, description="As env.step_timeout_s.")
    env_restarts: Whole = Field(_ENV.restarts, ge=0, description="As env.restarts.")
    env_restart_window_s: float = Field(_ENV.restart_window_s, gt=0, description="As env.restart_window_s.")
    env_quick: bool = Field(False, description="Whether a step of an environment takes less time than a message.")
    eval_apart: bool = Field(True, description="Whether the policy acts differently in evaluation: calls of its own.")
    logger_video_every: float = Field(_LOGGER.video_every, ge=0, description="As logger.video_every.")
    replica: Whole = Field(0, ge=0, description="Index of this learner replica.")
    replicas: Whole = Field(1, ge=1, description="Number of learner replicas.")
    clock_addr: str = Field("", description="Where replica 0 tells the others its clock decisions; needed by replicas.")
    restarted: Literal["", "alone", "together"] = Field("", description="How this role comes back in a live fleet.")
    life: Whole = Field(0, ge=0, description="Other than that of this role before: seeds of environments depend on it.")

    @model_validator(mode="after")
    def _replica_exists(self) -> Self:
        if self.replica >= self.replicas:
            raise ValueError(f"replica={self.replica} is not one of replicas={self.replicas}: they count from 0")
        if self.replicas > 1 and not self.clock_addr:
            raise ValueError("replicas need one clock: set clock_addr, such as tcp://HOST:PORT of replica 0")
        return self

    @property
    def actor_rows(self) -> int:
        """Environments in the largest policy call, and so in a worker's message."""
        if self.actor_batch > 0:
            return self.actor_batch
        return max(1, self.envs // 2) if self.envs else JOINING_ROWS

    @property
    def batches_ahead(self) -> int:
        """Train batches that are asked for before they are needed."""
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
        """Take `args` from a caller: these, a mapping, or any object that has (some of) the keys as attributes.

        What is missing gets its default. Attributes of other names are ignored, and so are other keys of a mapping,
        with a warning that names them. A key of a plain mapping that resembles a known one is an error.
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
    """Warn of keys that are not `known`; raise for one that looks misspelt.

    Only keys of a plain mapping were written for this call. A configuration object, which has its keys as attributes
    too, brings those of another program: they may resemble known ones.
    """
    others = sorted(str(key) for key in args if key not in known)
    if "run" in others and isinstance(args["run"], Mapping):
        raise ConfigError(
            "args has a group 'run': pass its keys flat, such as dict(**config['run'], logdir='runs/one')"
        )
    if "server_public" in others:
        raise ConfigError("args.server_public is now args.public_keys, which takes all that create_keys returns")
    if not all(hasattr(args, str(key)) for key in args):
        for key in others:
            if key not in PUBLISHED_ONLY and closest_key(key, known):
                raise unknown_key(key, known)
    if others:
        are = "is" if len(others) == 1 else "are"
        # From here and not from the caller's line, so that Python shows it once for all roles of a process.
        warnings.warn(f"args: {', '.join(others)} {are} ignored, since no role of a fleet has such a key", stacklevel=1)
