"""The Python API for training and for using trained policies. A thin layer, like the command line."""

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
    """Train an agent, like `dreamfleet train`, and block until the run has ended.

    Every process of the fleet imports `env` and `agent` by name, and with them the script that defines them. Call
    `train` under `if __name__ == "__main__":`.

    Args:
        config: Presets and overrides as on the command line, such as `["crafter", "run.steps=1e5"]`, a mapping such as
            `{"run.steps": 1e5}`, or a whole `Config`.
        run_dir: Folder of the run. An existing run is resumed.
        env: Name as in `env=NAME`, or your own function or class.
        agent: Name as in `agent=NAME`, or your own function or class.
        quiet: Print only errors and the last line.

    Returns:
        The exit code, the last step and the latest metrics of the run.

    Raises:
        BadInput: The configuration is invalid or does not fit the run in `run_dir`.
    """
    return run_training(config, Path(run_dir), env, agent, quiet)


def load_policy(path: str | PathLike[str], deterministic: bool = False) -> Policy:
    """Load the policy of a run or of an exported file. Call it as `action, state = policy(obs, state)`.

    Args:
        path: A run folder, whose latest snapshot is loaded, or a file written by `export`.
        deterministic: Take the most likely action instead of sampling.

    Returns:
        The policy, a callable for single observations.

    Raises:
        BadInput: `path` is neither a run folder with a snapshot nor an exported policy.
    """
    from dreamfleet.commands.evaluate import policies

    return policies.load_policy(Path(path), deterministic)


def export(run_dir: str | PathLike[str], path: str | PathLike[str]) -> None:
    """Export the policy of a run's latest snapshot to one file that only needs JAX and NumPy.

    Args:
        run_dir: Folder of the run.
        path: File to write, such as `policy.zip`.

    Raises:
        BadInput: The run has no snapshot, or `path` is not a file in an existing folder.
        ConfigError: The agent of the run cannot be exported.
    """
    from dreamfleet.commands.evaluate import policies

    policies.export_policy(Path(run_dir), Path(path))
