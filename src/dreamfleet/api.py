"""The package in Python: training, and using what was trained. Thin over `launch`, as the command line is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamfleet.commands.train import TrainResult, run_training
from dreamfleet.config.schema import Config

if TYPE_CHECKING:
    from dreamfleet.agent.export.policy_file import Policy

__all__ = ["TrainResult", "export", "load_policy", "train"]


def train(
    config: Config | Sequence[str] | Mapping[str, Any] = (),
    *,
    run_dir: str | PathLike[str],
    env: str | Callable[..., Any] | None = None,
    agent: str | Callable[..., Any] | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Starts a run and returns when it has ended, or continues the one in `run_dir`; the same as `dreamfleet train`.

    `config` is what the command line takes, `["crafter", "run.steps=1e5"]`, or the same as a mapping,
    `{"run.steps": 1e5}`, or a whole `Config`. `env` and `agent` are names as `env=` and `agent=` take them, or
    functions or classes of yours. Every process of the fleet imports these by name, and with them the script that
    defines them: call `train` under `if __name__ == "__main__":`.
    """
    return run_training(config, Path(run_dir), env, agent, quiet)


def load_policy(path: str | PathLike[str], deterministic: bool = False) -> Policy:
    """The policy of a run folder's newest snapshot, or of a file from `export`: `action, state = policy(obs, state)`.

    With `deterministic` it takes the likeliest action instead of a random one.
    """
    from dreamfleet.commands.evaluate import policies

    return policies.load_policy(Path(path), deterministic)


def export(run_dir: str | PathLike[str], path: str | PathLike[str]) -> None:
    """Writes the policy of a run folder's newest snapshot into one file that needs JAX and NumPy only."""
    from dreamfleet.commands.evaluate import policies

    policies.export_policy(Path(run_dir), Path(path))
