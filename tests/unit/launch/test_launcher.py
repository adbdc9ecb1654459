"""Which roles a fleet consists of, and what is checked before they start."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet import parallel
from dreamfleet.checkpoint.arrays import save_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import load_config, parse_overrides, save_config
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import AddressError, BadInput, ConfigError, RunFolderError
from dreamfleet.core.factories import Factories
from dreamfleet.core.spaces import Space
from dreamfleet.launch import fleet, launcher
from dreamfleet.launch.env_probe import EnvSpaces
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.supervision.role_spec import RestartRule, RoleSpec
from dreamfleet.transport.codec import pack_json
from dreamfleet.transport.security import create_keys
from support.addresses import expect_ipv6
from support.snapshot_parts import commit


def never_called(*args: Any) -> Any:
    raise AssertionError("a factory is called in the role's own process only")


FACTORIES = Factories(*[never_called] * 7)


@pytest.fixture(autouse=True)
def enough_room(monkeypatch) -> None:
    monkeypatch.setattr(launcher, "check_replay_fits", lambda config, folder, aloud: None)


def roles(**args: Any) -> dict[str, RoleSpec]:
    return {spec.name: spec for spec in fleet.fleet_roles(FACTORIES, FleetArgs(**args))}


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


def test_only_the_agent_gets_time_for_a_last_save() -> None:
    assert {name for name, spec in roles(envs=1, eval_envs=1).items() if spec.saves} == {"agent"}


def test_every_environment_is_stepped_by_exactly_one_worker() -> None:
    built = roles(envs=7, eval_envs=4, envs_per_worker=3)
    workers = {name: target(spec) for name, spec in built.items() if "-" in name}
    groups = {name: (worker.args[1], worker.keywords["mode"]) for name, worker in workers.items()}
    assert groups == {
        "env-0": ([0, 1, 2], "train"),
        "env-1": ([3, 4, 5], "train"),
        "env-2": ([6], "train"),
        "eval-0": ([0, 1, 2], "eval"),
        "eval-1": ([3], "eval"),
    }


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
        NoSupervisor.made = self

    def run(self) -> int:
        text = (self.folder.path / "fleet.json").read_text()
        self.fleet = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
        return 17


@pytest.fixture
def no_supervisor(monkeypatch) -> type[NoSupervisor]:
    monkeypatch.setattr(launcher, "Supervisor", NoSupervisor)
    return NoSupervisor


def test_run_fleet_resolves_addresses_makes_keys_and_hands_over(no_supervisor, tmp_path) -> None:
    times = "duration: 5, start_timeout_s: 6, stop_timeout_s: 7, save_timeout_s: 8, stall_timeout_s: 9"
    config = parse_overrides([f"run={{{times}, stall_restart: true, min_disk_gb: 2, envs: 1}}"])
    assert launcher.run_fleet(FACTORIES, FleetArgs.from_config(config, tmp_path), config=config) == 17
    made = no_supervisor.made
    assert made.options.pop("on_status") is None
    assert made.options.pop("about")["folder"] == str(tmp_path)
    watch = {"stall_timeout_s": 9, "stall_restart": True, "min_disk_gb": 2}
    assert made.options == {"duration_s": 5, "start_timeout_s": 6, "stop_timeout_s": 7, "save_timeout_s": 8, **watch}
    fleet = made.fleet
    assert Config.model_validate(fleet["config"]) == config
    assert load_config(tmp_path / "config.yaml") == config
    resolved = target(made.specs[0]).args[1]
    for name in ("actor", "replay", "logger"):
        local, remote = fleet["addresses"][name]
        assert local.startswith("ipc://")
        assert local.endswith(f"/{name}")
        assert remote.startswith("tcp://127.0.0.1:")
        assert getattr(resolved, f"{name}_addr") == f"{local},{remote}"
    assert "auto" not in json.dumps(fleet["addresses"])
    assert not made.folder.sockets.exists()


def test_spaces_that_the_agent_cannot_take_are_refused_before_a_role_starts(
    no_supervisor, monkeypatch, tmp_path
) -> None:
    spaces = EnvSpaces(
        {"obs": Space(np.float32, (2,))}, {"action": Space(np.int32, (), 0, 10**6), "reset": Space(bool)}
    )
    monkeypatch.setattr(launcher, "check_replay_fits", lambda config, folder, aloud: spaces)
    config = parse_overrides(["env=mine:Wide", "run.envs=1"])
    with pytest.raises(
        ConfigError, match="environment 'mine:Wide' does not suit agent=dreamer: the action 'action' has"
    ):
        launcher.run_fleet(FACTORIES, FleetArgs.from_config(config, tmp_path), config=config)
    assert not (tmp_path / "config.yaml").exists()


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


def test_a_remote_replay_is_reached_over_the_network(no_supervisor, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dreamfleet.roles.connect.end_roles", lambda client: None)
    launcher.run_fleet(FACTORIES, FleetArgs(logdir=tmp_path, remote_replay=True))
    (address,) = no_supervisor.made.fleet["addresses"]["replay"]
    assert address.startswith("tcp://")
    with pytest.raises(AddressError, match="remote_replay needs a tcp address"):
        launcher.run_fleet(FACTORIES, FleetArgs(logdir=tmp_path, remote_replay=True, replay_addr="ipc://{auto}"))


def test_the_address_of_a_replay_on_another_machine_is_not_tried_here(no_supervisor, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dreamfleet.roles.connect.end_roles", lambda client: None)
    address = "tcp://192.0.2.7:5555"
    launcher.run_fleet(FACTORIES, FleetArgs(logdir=tmp_path, remote_replay=True, replay_addr=address))
    assert no_supervisor.made.fleet["addresses"]["replay"] == [address]
    with pytest.raises(AddressError, match=r"such as tcp://192\.0\.2\.7:5555"):
        launcher.run_fleet(
            FACTORIES, FleetArgs(logdir=tmp_path, remote_replay=True, replay_addr="tcp://192.0.2.7:{auto}")
        )


def test_an_address_in_use_is_found_before_anything_starts(no_supervisor, tmp_path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            AddressError, match=rf"run.actor_addr: cannot listen on tcp://127.0.0.1:{port}.*another port"
        ):
            launcher.run_fleet(FACTORIES, FleetArgs(logdir=tmp_path, actor_addr=f"tcp://127.0.0.1:{port}"))


@pytest.mark.parametrize("held", ["127.0.0.1", "::1"])
def test_every_ipv6_address_is_in_use_if_one_of_either_kind_is(held: str, no_supervisor, tmp_path) -> None:
    expect_ipv6()
    with socket.socket(socket.AF_INET6 if ":" in held else socket.AF_INET) as taken:
        taken.bind((held, 0))
        taken.listen()
        everywhere = f"tcp://[::]:{taken.getsockname()[1]}"
        with pytest.raises(AddressError, match=re.escape(f"cannot listen on {everywhere}: Address already in use")):
            launcher.run_fleet(FACTORIES, FleetArgs(logdir=tmp_path, actor_addr=everywhere))


def run_configured(run: Path, *overrides: str) -> int:
    config = parse_overrides(list(overrides))
    return launcher.run_fleet(FACTORIES, FleetArgs.from_config(config, run), config=config)


@pytest.mark.parametrize("snapshot", [False, True])
def test_nothing_is_written_for_a_start_that_is_refused(no_supervisor, tmp_path, snapshot: bool) -> None:
    run_configured(tmp_path)
    if snapshot:
        commit_snapshot(tmp_path)
    before = (tmp_path / "config.yaml").read_text(), (tmp_path / "fleet.json").read_text()
    with pytest.raises(BadInput, match="remote_replay needs a tcp address"):
        run_configured(tmp_path, "run.remote_replay=true", "run.replay_addr=ipc://{auto}")
    with RunFolder(tmp_path), pytest.raises(RunFolderError, match="in use"):
        run_configured(tmp_path, "seed=5")
    assert before == ((tmp_path / "config.yaml").read_text(), (tmp_path / "fleet.json").read_text())


def test_a_target_that_cannot_be_sent_leaves_the_configuration_as_it_was(tmp_path) -> None:
    config = parse_overrides([])
    unsendable = Factories(*[threading.Lock()] * 7)  # type: ignore[list-item]
    with pytest.raises(BadInput, match="cannot be pickled"):
        launcher.run_fleet(unsendable, FleetArgs.from_config(config, tmp_path), config=config)
    assert not (tmp_path / "config.yaml").exists()


def commit_snapshot(run: Path) -> None:
    commit(run, 10, updates=1)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("env=support.user_envs:Tiny", "env.name"),
        ("env.kwargs.size=16", "env.kwargs.size"),
        ("env.kwargs.more=null", "env.kwargs.more"),
        ("agent=support.user_envs:NeverTrains", "agent.name"),
    ],
)
def test_a_run_with_a_snapshot_keeps_its_environment_and_agent(
    no_supervisor, tmp_path, override: str, key: str
) -> None:
    start = ["env.kwargs.size=8", "run.steps=10_000"]
    run_configured(tmp_path, *start)
    run_configured(tmp_path, *start, override)  # nothing depends on them yet
    run_configured(tmp_path, *start)
    commit_snapshot(tmp_path)
    with pytest.raises(ConfigError, match=rf"^{key} cannot change in .*: choose another --run-dir"):
        run_configured(tmp_path, *start, override)
    assert run_configured(tmp_path, *start, "run.steps=20_000", "batch_size=3") == 17
    assert load_config(tmp_path / "config.yaml").run.steps == 20_000


def test_all_ports_of_a_fleet_differ(no_supervisor, tmp_path, monkeypatch) -> None:
    """The system may give a port that was just freed again at once."""
    taken: set[int] = set()

    class LowestPort(socket.socket):
        def bind(self, address: Any) -> None:
            self.port = min(set(range(40_000, 40_100)) - taken)
            taken.add(self.port)

        def getsockname(self) -> tuple[str, int]:
            return "0.0.0.0", self.port

        def close(self) -> None:
            taken.discard(self.port)
            super().close()

    monkeypatch.setattr("dreamfleet.transport.address.socket.socket", LowestPort)
    monkeypatch.setattr(launcher, "_check_free", lambda address, key: None)
    launcher.run_fleet(FACTORIES, FleetArgs(logdir=tmp_path))
    remote = [addresses[1] for addresses in no_supervisor.made.fleet["addresses"].values()]
    assert len(set(remote)) == 3
    assert not taken


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


def test_who_comes_back_with_whom_and_how_often() -> None:
    args = FleetArgs(envs=2, eval_envs=1, envs_per_worker=1, max_restarts=4, env_worker_restarts=5, restart_window_s=6)
    rules = {role.name: role.restart for role in fleet.fleet_roles(FACTORIES, args)}
    worker = RestartRule(5, "run.env_worker_restarts", 6, stateless=True)
    alone = RestartRule(4, "run.max_restarts")
    together = RestartRule(4, "run.max_restarts", restart_group=("logger", "replay"))
    workers = dict.fromkeys(("env-0", "env-1", "eval-0"), worker)
    assert rules == {"logger": alone, "replay": alone, "agent": together, **workers}
    thread = fleet.fleet_roles(FACTORIES, args.model_copy(update={"agent_process": False}))
    assert next(role for role in thread if role.name == "agent").restart is None


@pytest.mark.parametrize("how", ["alone", "together"])
def test_a_role_is_told_how_it_comes_back(how: str) -> None:
    for role in fleet.fleet_roles(FACTORIES, FleetArgs(envs=1, eval_envs=0)):
        if role.restart_target:
            first, later = role.target, role.restart_target(how)
            assert (first.args[-1].restarted, later.args[-1].restarted) == ("", how)  # type: ignore[attr-defined]


def lives(specs: list[RoleSpec]) -> list[int]:
    """Of a worker's first life and two more, which its environments' seeds depend on."""
    worker = next(spec for spec in specs if spec.name == "env-0")
    assert worker.restart_target
    targets = [worker.target, worker.restart_target("alone"), worker.restart_target("alone")]
    return [made.args[-1].life for made in targets]  # type: ignore[attr-defined]


def test_environments_of_every_life_have_other_seeds(no_supervisor, tmp_path) -> None:
    run_configured(tmp_path)
    assert lives(no_supervisor.made.specs) == [0, 1, 2]
    commit_snapshot(tmp_path)
    run_configured(tmp_path)
    assert lives(no_supervisor.made.specs) == [10, 11, 12]


def contents(run: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(run.rglob("*"))}


def commit_returns(run: Path, returns: list[float]) -> None:
    """A snapshot at step 10 with the returns of the last training episodes."""
    folder = Snapshots(run).begin(10)
    save_arrays(folder / "logger.safetensors", {"json": pack_json({"towards_goal": returns})})
    Snapshots(run).commit(10, {"updates": 1})


def test_a_run_at_its_budget_is_finished_and_nothing_starts_or_changes(tmp_path, capsys) -> None:
    save_config(parse_overrides(["agent=random", "run.steps=10"]), tmp_path / "config.yaml")
    commit_snapshot(tmp_path)
    before = contents(tmp_path)
    assert run_configured(tmp_path, "agent=random", "run.steps=10") == 0
    assert contents(tmp_path) == before
    assert capsys.readouterr().err == (
        f"dreamfleet: the run in {tmp_path} is finished: it is at step 10, and run.steps=10: "
        "to continue, increase it, such as run.steps=20\n"
    )


def test_a_finished_run_goes_on_with_a_larger_budget(no_supervisor, tmp_path) -> None:
    commit_snapshot(tmp_path)
    assert run_configured(tmp_path, "agent=random", "run.steps=11") == 17
    assert (
        run_configured(tmp_path, "agent=random", "run.steps=11", "run.duration=1") == 17
    )  # each command has a time of its own


@pytest.mark.parametrize(
    ("returns", "overrides", "code"),
    [
        ([0.0, 9.0, 11.0], ["run.goal=10", "run.goal_episodes=2"], 0),
        ([0.0, 9.0, 11.0], ["run.goal=10.5", "run.goal_episodes=2"], 17),
        ([0.0, 9.0, 11.0], ["run.goal=1", "run.goal_episodes=4"], 17),
        ([0.0, 9.0, 11.0], ["run.goal_episodes=2"], 17),
        ([], ["run.goal=-1"], 17),
    ],
    ids=["reached", "higher", "too few episodes", "no goal", "no episode"],
)
def test_a_run_whose_snapshot_has_reached_the_goal_is_finished(
    no_supervisor, tmp_path, capsys, returns: list[float], overrides: list[str], code: int
) -> None:
    commit_returns(tmp_path, returns)
    assert run_configured(tmp_path, "agent=random", *overrides) == code
    said = "finished: the mean return of 2 episodes is 10, and run.goal=10: to continue, increase it\n"
    assert (said in capsys.readouterr().err) == (code == 0)


def test_a_finished_run_is_still_that_of_its_task_and_of_whoever_has_its_folder(no_supervisor, tmp_path) -> None:
    run_configured(tmp_path, "agent=random", "run.steps=10")
    commit_snapshot(tmp_path)
    with pytest.raises(ConfigError, match=r"env\.name cannot change"):
        run_configured(tmp_path, "agent=random", "run.steps=10", "env=catch")
    with RunFolder(tmp_path), pytest.raises(RunFolderError, match="in use by another run"):
        run_configured(tmp_path, "agent=random", "run.steps=10")
    assert run_configured(tmp_path, "agent=random", "run.steps=10") == 0
