"""What a fleet chooses for itself: by the cores it may use, and by what is known of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import parse_overrides
from dreamfleet.envs.catalog import is_quick
from dreamfleet.launch import worker_size
from dreamfleet.launch.dreamer import acts_beside_updates
from dreamfleet.launch.worker_size import envs_per_worker, fleet_args, workers


@pytest.mark.parametrize(
    ("envs", "configured", "cores", "expected"),
    [(16, -1, 2, 8), (16, 0, 2, 8), (5, -1, 2, 3), (1, -1, 8, 1), (16, 1, 2, 1), (0, -1, 4, 1), (3, -1, 0.5, 3)],
)
def test_unless_configured_there_are_as_many_workers_as_cores(
    monkeypatch: pytest.MonkeyPatch, envs: int, configured: int, cores: float, expected: int
) -> None:
    monkeypatch.setattr(worker_size, "usable_cores", lambda: cores)
    args = FleetArgs(envs=envs, envs_per_worker=configured, remote_envs=True)
    assert envs_per_worker(args) == expected


@pytest.mark.parametrize(
    ("env", "envs", "cores", "processes"),
    [
        ("crafter", 16, 16, 16),
        ("dummy", 32, 16, 4),
        ("dummy", 32, 2, 2),
        ("gym:CartPole-v1", 4, 16, 2),
        ("gym:CartPole-v1", 1, 16, 1),
        ("gym:HalfCheetah-v5", 4, 16, 4),
        ("my_package.world:make", 8, 16, 8),
    ],
)
def test_environments_of_microseconds_share_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, env: str, envs: int, cores: float, processes: int
) -> None:
    monkeypatch.setattr(worker_size, "usable_cores", lambda: cores)
    args = fleet_args(parse_overrides([f"env={env}", f"run.envs={envs}"]), tmp_path)
    assert workers(args) == processes


def test_what_is_configured_counts_also_for_quick_environments(tmp_path: Path) -> None:
    args = fleet_args(parse_overrides(["env=dummy", "run.envs=8", "run.envs_per_worker=1"]), tmp_path)
    assert workers(args) == 8


@pytest.mark.parametrize(("name", "quick"), [("catch", True), ("catch:vector", True), ("crafter", False), ("x", False)])
def test_only_what_is_known_is_called_quick(name: str, quick: bool) -> None:
    assert is_quick(name) is quick


@pytest.mark.parametrize(("configured", "ahead"), [(-1, 3), (0, 3), (1, 1), (7, 7)])
def test_batches_ahead(configured: int, ahead: int) -> None:
    assert FleetArgs(prefetch=configured).batches_ahead == ahead


@pytest.mark.parametrize(
    ("words", "beside"),
    [
        ([], True),
        (["jax.train_devices=[1]", "jax.policy_devices=[1]"], True),
        (["jax.concurrent=false"], False),
        (["jax.train_devices=[0,1]"], False),
        (["jax.policy_devices=[1]"], False),
    ],
)
def test_acting_has_a_client_of_its_own_on_the_one_device_that_trains(words: list[str], beside: bool) -> None:
    assert acts_beside_updates(parse_overrides(words).jax) is beside
