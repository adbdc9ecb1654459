"""`dreamfleet eval`: evaluate the latest agent of a run folder, during or after the run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.commands.evaluate.episodes import SequentialEnvs, play, share
from dreamfleet.commands.evaluate.policies import make_policy, needs_no_agent
from dreamfleet.commands.evaluate.video import Recorder, check_target, drawing_config, image_key
from dreamfleet.config.load import parse_overrides
from dreamfleet.config.schema import Config
from dreamfleet.core.error_origin import told
from dreamfleet.core.errors import (
    BadInput,
    CheckpointError,
    ConfigError,
    DreamfleetError,
    EnvError,
    EnvFailed,
    known_errors,
)
from dreamfleet.core.interfaces import EnvBatch
from dreamfleet.core.statistics import LEVEL, bootstrap
from dreamfleet.envs.render.backend import prepare_drawing
from dreamfleet.launch.dreamer import set_environment
from dreamfleet.launch.env_child import env_child, question
from dreamfleet.launch.factories import check_names, make_unadapted
from dreamfleet.runs.liveness import is_live
from dreamfleet.runs.saved_run import SavedAgent, read_agent, read_config

MAX_ENVS = 8  # in one policy call
PER_LINE = 10


@dataclass(frozen=True)
class EvalOptions:
    episodes: int = 10
    deterministic: bool = False
    env: str | None = None
    seed: int | None = None
    video: Path | None = None


def evaluate(run: Path, options: EvalOptions) -> dict[str, Any]:
    """What `show_evaluation` shows. A run that is live is hardly disturbed."""
    config = read_config(run)
    if options.video:
        check_target(options.video)
    if options.seed is not None and options.seed < 0:
        raise BadInput(f"--seed {options.seed}: seeds are whole numbers from 0 on")
    # An environment may take this process to another folder.
    here = replace(options, video=options.video.absolute() if options.video else None)
    report = _evaluate_aside(config, run, here) if is_live(run) else evaluate_here(run, here)
    return {**report, "video": str(options.video) if options.video else None}


def evaluate_here(run: Path, options: EvalOptions, live: bool = False) -> dict[str, Any]:
    """Chooses the platform of this process for good, so call it in one that does nothing else."""
    prepare_drawing()
    config = read_config(run)
    saved = None if needs_no_agent(config) else read_agent(run)
    config = _choose_platform(config)
    set_environment(config.jax)
    started = time.monotonic()
    with printed_to_stderr():
        found = _play(_evaluated(config, options), saved, options)
    returns = [episode.score for episode in found["episodes"]]
    return {
        "run": str(run),
        "env": options.env or config.env.name,
        "step": saved.step if saved else None,
        "live": live,
        "episodes": options.episodes,
        "returns": returns,
        "lengths": [episode.length for episode in found["episodes"]],
        "mean": float(np.mean(returns)),
        "interval": bootstrap(returns),
        "level": LEVEL,
        "deterministic": options.deterministic,
        "seconds": round(time.monotonic() - started, 2),
        "video": str(found["video"]) if found["video"] else None,
    }


def show_evaluation(report: dict[str, Any]) -> str:
    returns, lengths = report["returns"], report["lengths"]
    at = "" if report["step"] is None else f" at step {report['step']}"
    lines = [f"{report['run']}{at}: {report['episodes']} episodes of {report['env']} in {report['seconds']:.1f} s"]
    for name, values in (("returns", returns), ("lengths", lengths)):
        for start in range(0, len(values), PER_LINE):
            cells = "".join(f" {value:>6.4g}" for value in values[start : start + PER_LINE])
            lines.append(f"{name if start == 0 else '':8}{cells}")
    low, high = report["interval"]
    spread = f" ({LEVEL:.0%} interval {low:.4g} to {high:.4g})" if len(returns) > 1 else " (one episode: no interval)"
    lines.append(f"mean return {report['mean']:.4g}{spread}, mean length {np.mean(lengths):.4g}")
    if report["video"]:
        lines.append(f"video of the first episode: {report['video']}")
    return "\n".join(lines)


def _evaluate_aside(config: Config, run: Path, options: EvalOptions) -> dict[str, Any]:
    """In a process that takes only what the run leaves: the CPU, where and when the run has no use for it."""
    asked = {**asdict(options), "video": str(options.video) if options.video else None}
    with env_child("dreamfleet.commands.evaluate.low_priority", stderr=2) as child:
        answer, _ = child.communicate(question(config, run=str(run), options=asked))
    try:
        report: dict[str, Any] = json.loads(answer)
    except ValueError:
        raise EnvError(f"the evaluation ended with code {child.returncode}: its own output says why") from None
    if "error" in report:
        raise known_errors()[report["error"]](report["reason"])
    return report


@contextlib.contextmanager
def printed_to_stderr() -> Iterator[None]:
    """What environments print, natively or not, must not end up among the results."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _choose_platform(config: Config) -> Config:
    """The run's, unless JAX_PLATFORMS asks for another."""
    platform = "auto" if "JAX_PLATFORMS" in os.environ else config.jax.platform
    return config.model_copy(update={"jax": config.jax.model_copy(update={"platform": platform, "mock_devices": 0})})


def _evaluated(config: Config, options: EvalOptions) -> Config:
    if options.env is not None:
        config = parse_overrides([f"env={options.env}"], config)
        check_names(config)
    if options.seed is not None:
        config = config.model_copy(update={"seed": options.seed})
    # One episode after the other in each of them, which environments that step together cannot promise. Wrappers of
    # vectorised environments take no others.
    vector = config.env.vector and bool(config.env.wrappers)
    return config.model_copy(update={"env": config.env.model_copy(update={"vector": vector})})


def _play(config: Config, saved: SavedAgent | None, options: EvalOptions) -> dict[str, Any]:
    if config.agent.name == "dreamer" and config.jax.cache:
        from dreamfleet.agent.compilation import use_cache

        if warning := use_cache(config.jax.cache):
            sys.stderr.write(f"dreamfleet: {warning}\n")
    envs, first = _make_envs(config, min(options.episodes, MAX_ENVS))
    if options.video and image_key(envs.obs_space) is None:
        envs.close()
        envs, first = _make_envs(drawing_config(config), min(options.episodes, MAX_ENVS))
    try:
        recorder = Recorder(options.video, envs.obs_space, first, config.env.name) if options.video else None
        try:
            policy = make_policy(config, saved, envs.obs_space, envs.act_space, deterministic=options.deterministic)
        except CheckpointError as error:
            if options.env is None:
                raise
            raise ConfigError(f"--env {options.env} does not suit the agent of this run: {error}") from error
        policy.reset(config.seed)
        try:
            played = play(envs, policy.act, share(options.episodes, envs.num_envs), recorder.add if recorder else None)
        except DreamfleetError:
            raise
        except Exception as error:
            raise EnvFailed(f"environment {config.env.name!r} failed: {told(error)}") from error
        return {"episodes": played, "video": recorder.write() if recorder else None}
    finally:
        envs.close()


def _make_envs(config: Config, count: int) -> tuple[SequentialEnvs | EnvBatch, Any]:
    """Numbered after those of the fleet, and so seeded apart from all of them, and the first as its author wrote it."""
    taken = config.run.envs + config.run.eval_envs
    made = make_unadapted(config, "eval", taken, count)
    env = made.adapted()
    if isinstance(env, EnvBatch):
        return env, made.made
    others = [make_unadapted(config, "eval", taken + number).adapted() for number in range(1, count)]
    return SequentialEnvs([env, *[other for other in others if not isinstance(other, EnvBatch)]]), made.made
