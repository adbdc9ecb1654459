"""The authors' own code, trained on a task of ours with the settings of ours: what does it learn on this machine?

    python benchmarks/published.py --code PATH --run-dir DIR [PRESET ...] [KEY=VALUE ...]

PATH is a folder of danijar/dreamerv3 with its packages `dreamerv3` and `embodied`; docs/reproducing.md says what to
install beside Dreamfleet. It trains in its single process (`embodied.run.train`) on our environments, with what our
configuration says, key by key; what would be trained otherwise is refused. DIR becomes a run folder of ours as far as
`dreamfleet plot` and `learning.py` read one: the configuration and every episode.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.config.agent import hyperparameters
from dreamfleet.config.load import parse_overrides, save_config
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import BadInput
from dreamfleet.core.hyperparameters import DreamerOptions
from dreamfleet.core.spaces import Space, without_log
from dreamfleet.launch.factories import make_env

LAYERS = {"act": "silu", "norm": "rms", "winit": "trunc_normal_in"}  # of every network, in both codes
HEADS: dict[str, dict[str, str]] = {
    "rewhead": {"output": "symexp_twohot"},
    "conhead": {"output": "binary"},
    "value": {"output": "symexp_twohot"},
    "policy": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", type=Path, required=True, help="folder with the authors' packages")
    parser.add_argument("--run-dir", type=Path, required=True)
    options, words = parser.parse_known_args()
    try:
        config = parse_overrides(words)
        check(config)
        import_code(options.code)
        options.run_dir.mkdir(parents=True)
    except (BadInput, FileExistsError) as error:
        raise SystemExit(f"{parser.prog}: {error}") from None
    save_config(config, options.run_dir / "config.yaml")
    begun = time.perf_counter()
    updates = train(config, options.run_dir)
    print(json.dumps({"updates": updates, "seconds": round(time.perf_counter() - begun, 1)}))


def check(config: Config) -> None:
    """Refuses what would be trained otherwise than by our fleet."""
    same = parse_overrides([])
    wanted = {
        "agent": (config.agent.name, same.agent.name),
        "agent.policy.unimix": (config.agent.policy.unimix, 0),
        "jax.accumulate": (config.jax.accumulate, 1),
        "replay.fracs": (config.replay.fracs, same.replay.fracs),
        "replay.size_bytes": (config.replay.size_bytes, 0),
        "run.duration": (config.run.duration, 0),
        "run.from_checkpoint": (config.run.from_checkpoint, ""),
        "run.goal": (config.run.goal, None),
    }
    other = [key for key, (value, default) in wanted.items() if value != default]
    if other:
        raise BadInput(f"the authors' code is not asked for {', '.join(other)} here: leave it at its default")
    if config.run.train_ratio <= 0:
        raise BadInput("the authors' single process trains by a ratio: set run.train_ratio above 0")
    if config.jax.platform == "auto":
        raise BadInput("the authors' code must know what it computes on: set jax.platform, or add the preset cpu")


def import_code(folder: Path) -> None:
    if not (folder / "dreamerv3" / "agent.py").exists():
        raise BadInput(f"{folder} has no dreamerv3/agent.py: name a folder of danijar/dreamerv3")
    sys.path.insert(0, str(folder.resolve()))


def train(config: Config, folder: Path) -> int:
    import elements
    import embodied

    agent, run = make_agent(config, folder), config.run
    args = elements.Config(
        steps=run.steps,
        train_ratio=run.train_ratio,
        envs=run.envs,
        log_every=1e9,
        report_every=1e9,
        save_every=1e9,
        report_batches=1,
        from_checkpoint="",
        debug=True,  # environments in this process
        usage={"psutil": False, "nvsmi": False, "gputil": False, "malloc": False, "gc": False},
        logdir=str(folder / "published"),
        batch_size=config.batch_size,
        batch_length=config.batch_length,
        report_length=config.report_length,
        consec_train=config.consec_train,
        consec_report=config.consec_report,
        replay_context=config.replay_context,
    )
    embodied.run.train(
        lambda: agent,
        partial(make_replay, config, folder),
        partial(make_their_env, config),
        partial(make_stream, config),
        partial(EpisodeLog, elements.Counter(), folder / "episodes.jsonl"),
        args,
    )
    return int(agent.n_updates)


class EpisodeLog:
    """What their training loop needs of a logger. Episodes are written as ours are; all are said to be of one env."""

    def __init__(self, step: Any, path: Path) -> None:
        self.step = step
        self._file = path.open("w", buffering=1)

    def add(self, metrics: dict[str, Any], prefix: str | None = None) -> None:
        if prefix == "episode":
            # Theirs counts the first observation too, which no action led to.
            found = {"return": float(metrics["score"]), "length": int(metrics["length"]) - 1}
            row = {"step": int(self.step), "time": time.time(), "env": 0, "mode": "train", **found}
            self._file.write(json.dumps(row) + "\n")

    def write(self) -> None:
        pass

    def close(self) -> None:
        self._file.close()


def make_agent(config: Config, folder: Path) -> Any:
    env = make_their_env(config, 0)
    obs_space = without_log(env.obs_space)
    act_space = {key: space for key, space in env.act_space.items() if key != "reset"}
    env.close()
    settings = {
        "logdir": str(folder),
        "seed": config.seed,
        "batch_size": config.batch_size,
        "batch_length": config.batch_length,
        "report_length": config.report_length,
        "replay_context": config.replay_context,
        "jax": {
            "platform": config.jax.platform,
            "compute_dtype": config.jax.compute_dtype,
            "policy_devices": config.jax.policy_devices,
            "train_devices": config.jax.train_devices,
            "prealloc": config.jax.prealloc,
        },
    }
    return build_agent(obs_space, act_space, hyperparameters(config.agent), settings)


def build_agent(
    obs_space: dict[str, Any], act_space: dict[str, Any], options: DreamerOptions, settings: dict[str, Any]
) -> Any:
    import elements
    from dreamerv3.agent import Agent

    jax = {"profiler": False, **settings["jax"]}
    return Agent(obs_space, act_space, elements.Config(**{**their_options(options), **settings, "jax": jax}))


def their_options(ours: DreamerOptions) -> dict[str, Any]:
    """Their configuration of the agent. Names are the same but for where the parts of the world model are."""
    found = dataclasses.asdict(ours)
    found["dyn"] = {"typ": "rssm", "rssm": found["dyn"] | LAYERS}
    for part in ("enc", "dec"):
        found[part] = {"typ": "simple", "simple": found[part] | LAYERS | {"outer": False, "strided": False}}
    for part, more in HEADS.items():
        found[part] |= LAYERS | more
    found["repl_loss"]["slowtar"] = False
    return found | {"policy_dist_disc": "categorical", "policy_dist_cont": "bounded_normal", "report": False}


def make_replay(config: Config, folder: Path) -> Any:
    import embodied

    length = config.consec_train * config.batch_length + config.replay_context
    return embodied.replay.Replay(
        length=length,
        capacity=config.replay.size,
        online=config.replay.online,
        chunksize=config.replay.chunksize,
        directory=folder / "published" / "replay",
    )


def make_stream(config: Config, replay: Any, mode: str) -> Any:
    import embodied

    length, consec = config.batch_length, config.consec_train
    if mode != "train":
        length, consec = config.report_length, config.consec_report
    source = embodied.streams.Stateless(replay.sample, config.batch_size, mode)
    return embodied.streams.Consec(
        source, length=length, consec=consec, prefix=config.replay_context, strict=mode == "train", contiguous=True
    )


def make_their_env(config: Config, index: int) -> Any:
    import embodied

    class TheirEnv(embodied.Env):
        """An environment of ours behind their interface: other classes of spaces, and arrays only."""

        def __init__(self) -> None:
            self._env: Any = make_env(config, "train", index)
            self.obs_space_, self.act_space_ = (
                {key: their_space(space) for key, space in spaces.items()}
                for spaces in (self._env.obs_space, self._env.act_space)
            )

        @property
        def obs_space(self) -> dict[str, Any]:
            return self.obs_space_

        @property
        def act_space(self) -> dict[str, Any]:
            return self.act_space_

        def step(self, action: dict[str, Any]) -> dict[str, np.ndarray]:
            obs = self._env.step(action)
            return {key: np.asarray(obs[key], space.dtype) for key, space in self.obs_space_.items()}

        def close(self) -> None:
            self._env.close()

    return TheirEnv()


def their_space(space: Space) -> Any:
    import elements

    if space.dtype == bool:
        return elements.Space(bool, space.shape)
    return elements.Space(space.dtype, space.shape, space.low, space.high)


if __name__ == "__main__":
    main()
