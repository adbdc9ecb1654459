"""Which roles a fleet consists of, and what is checked before they start."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dreamfleet import parallel
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import AddressError, RunFolderError
from dreamfleet.launch import launcher
from dreamfleet.launch.factories import Factories
from dreamfleet.launch.run_folder import RunFolder
from dreamfleet.launch.topology import RoleSpec
from dreamfleet.transport.security import create_keys


def never_called(*args: Any) -> Any:
    raise AssertionError("a factory is called in the role's own process only")


FACTORIES = Factories(*[never_called] * 7)


def roles(**args: Any) -> dict[str, RoleSpec]:
    return {spec.name: spec for spec in launcher.fleet_roles(FACTORIES, FleetArgs(**args))}


def target(spec: RoleSpec) -> partial[Any]:
    assert isinstance(spec.target, partial)
    return spec.target


def test_a_fleet_has_one_of_each_role_and_workers_for_its_environments() -> None:
    built = roles(envs=4, eval_envs=2, envs_per_worker=2)
    assert list(built) == ["logger", "replay", "agent", "env-0", "env-1", "eval-0"]
    functions: dict[str, Callable[..., Any]] = {name: target(spec).func for name, spec in built.items()}
    assert functions["logger"] is parallel.parallel_logger
    assert functions["replay"] is parallel.parallel_replay
    assert functions["agent"] is parallel.parallel_agent
    assert functions["env-0"] is functions["eval-0"] is parallel.parallel_env_group


def test_roles_stop_in_the_order_in_which_data_flows() -> None:
    ranks = {name: spec.stop_rank for name, spec in roles(envs=1, eval_envs=1).items()}
    assert ranks == {"env-0": 0, "eval-0": 0, "agent": 1, "replay": 2, "logger": 3}


def test_every_environment_is_stepped_by_exactly_one_worker() -> None:
    built = roles(envs=7, eval_envs=4, envs_per_worker=3)
    groups = {name: (target(s).args[1], target(s).args[3]) for name, s in built.items() if "-" in name}
    assert groups == {
        "env-0": ([0, 1, 2], "train"),
        "env-1": ([3, 4, 5], "train"),
        "env-2": ([6], "train"),
        "eval-0": ([0, 1, 2], "eval"),
        "eval-1": ([3], "eval"),
    }


@pytest.mark.parametrize(
    ("envs", "configured", "cores", "expected"),
    [(16, -1, 2, 8), (16, 0, 2, 8), (5, -1, 2, 3), (1, -1, 8, 1), (16, 1, 2, 1), (0, -1, 4, 1), (3, -1, None, 3)],
)
def test_unless_configured_there_are_as_many_workers_as_cores(
    monkeypatch, envs: int, configured: int, cores: int | None, expected: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    args = FleetArgs(envs=envs, envs_per_worker=configured, remote_envs=True)
    assert launcher.envs_per_worker(args) == expected


def test_remote_environments_are_not_started_here() -> None:
    assert list(roles(remote_envs=True)) == ["logger", "replay", "agent"]


def test_a_remote_replay_is_not_started_here() -> None:
    assert list(roles(remote_replay=True, envs=1, eval_envs=0)) == ["logger", "agent", "env-0"]


@pytest.mark.parametrize("agent_process", [True, False])
def test_the_agent_is_a_process_or_a_thread_and_everything_else_a_process(agent_process: bool) -> None:
    threads = {name: spec.thread for name, spec in roles(envs=1, eval_envs=1, agent_process=agent_process).items()}
    assert threads.pop("agent") is not agent_process
    assert not any(threads.values())


def test_only_the_agent_may_see_an_accelerator() -> None:
    hidden = {name for name, spec in roles(envs=1, eval_envs=1).items() if spec.env.get("CUDA_VISIBLE_DEVICES") == ""}
    assert hidden == {"logger", "replay", "env-0", "eval-0"}


def test_a_fleet_needs_a_run_folder() -> None:
    with pytest.raises(RunFolderError, match=r"set args\.logdir"):
        launcher.run_fleet(FACTORIES, FleetArgs())


class NoSupervisor:
    """Takes the place of the supervisor and keeps what it was given."""

    made: NoSupervisor

    def __init__(self, specs: list[RoleSpec], folder: RunFolder, **options: Any) -> None:
        self.specs, self.folder, self.options = specs, folder, options
        self.fleet = json.loads((folder.path / "fleet.json").read_text())
        NoSupervisor.made = self

    def run(self) -> int:
        return 17


@pytest.fixture
def no_supervisor(monkeypatch) -> type[NoSupervisor]:
    monkeypatch.setattr(launcher, "Supervisor", NoSupervisor)
    return NoSupervisor


def test_run_fleet_resolves_addresses_makes_keys_and_hands_over(no_supervisor, tmp_path) -> None:
    args = FleetArgs(logdir=tmp_path, duration=5.0, start_timeout_s=6.0, stop_timeout_s=7.0, envs=1, eval_envs=0)
    assert launcher.run_fleet(FACTORIES, args, config={"seed": 3}) == 17
    made = no_supervisor.made
    options = {key: made.options[key] for key in ("duration_s", "start_timeout_s", "stop_timeout_s")}
    assert options == {"duration_s": 5, "start_timeout_s": 6, "stop_timeout_s": 7}
    fleet = made.fleet
    assert fleet["config"] == {"seed": 3}
    resolved = target(made.specs[0]).args[1]
    for name in ("actor", "replay", "logger"):
        local, remote = fleet["addresses"][name]
        assert local.startswith("ipc://")
        assert local.endswith(f"/{name}")
        assert remote.startswith("tcp://127.0.0.1:")
        assert getattr(resolved, f"{name}_addr") == f"{local},{remote}"
    assert "auto" not in json.dumps(fleet["addresses"])
    assert not made.folder.sockets.exists()


def test_the_fleet_file_holds_no_secret(no_supervisor, tmp_path) -> None:
    launcher.run_fleet(FACTORIES, FleetArgs(logdir=tmp_path))
    text = (tmp_path / "fleet.json").read_text()
    create_keys(tmp_path / "keys")  # changes nothing where there are keys
    secrets = [secret for path in (tmp_path / "keys").iterdir() for secret in secrets_in(path)]
    assert secrets
    assert not any(secret in text for secret in secrets)


def secrets_in(path: Path) -> list[str]:
    values = json.loads(path.read_text())
    return [value for key, value in values.items() if "secret" in key]


def test_a_remote_replay_is_reached_over_the_network(no_supervisor, tmp_path) -> None:
    launcher.run_fleet(FACTORIES, FleetArgs(logdir=tmp_path, remote_replay=True))
    (address,) = no_supervisor.made.fleet["addresses"]["replay"]
    assert address.startswith("tcp://")
    with pytest.raises(AddressError, match="remote_replay needs a tcp address"):
        launcher.run_fleet(FACTORIES, FleetArgs(logdir=tmp_path, remote_replay=True, replay_addr="ipc://{auto}"))


def test_an_address_in_use_is_found_before_anything_starts(no_supervisor, tmp_path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            AddressError, match=rf"run.actor_addr: cannot listen on tcp://127.0.0.1:{port}.*another port"
        ):
            launcher.run_fleet(FACTORIES, FleetArgs(logdir=tmp_path, actor_addr=f"tcp://127.0.0.1:{port}"))


def test_roles_elsewhere_keep_their_files_apart_from_the_fleets(monkeypatch, tmp_path) -> None:
    folders = []

    class Supervisor:
        def __init__(self, specs: list[RoleSpec], folder: RunFolder, **options: Any) -> None:
            folders.append(folder.path)

        def run(self) -> int:
            return 0

    monkeypatch.setattr(launcher, "Supervisor", Supervisor)
    assert launcher.run_envs(never_called, never_called, FleetArgs(logdir=tmp_path)) == 0
    assert folders == [tmp_path / "remote" / f"{socket.gethostname()}-{os.getpid()}"]
