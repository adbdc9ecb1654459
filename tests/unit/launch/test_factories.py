"""From a configuration to factories, and from a fleet file to roles that join."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.agent.checks import finite
from dreamfleet.agent.dreamer import ComputeOptions
from dreamfleet.agent.random_agent import RandomAgent
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import parse_overrides
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import BadInput, ConfigError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.spaces import STEP_KEYS, Space
from dreamfleet.envs.builtin.dummy import Dummy
from dreamfleet.launch import factories as build
from dreamfleet.launch import fleet_file
from dreamfleet.launch.dreamer import make_dreamer
from dreamfleet.launch.env_probe import describe_spaces
from dreamfleet.launch.fleet_file import describe_fleet
from dreamfleet.launch.fleet_signature import sign
from dreamfleet.launch.replay_options import replay_options
from dreamfleet.replay.store import ReplayOptions
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.transport.security import create_keys
from support.wrapping_fakes import CROSSING


def config_of(*overrides: str) -> Config:
    return parse_overrides(list(overrides))


def make_own_agent(obs_space: Any, act_space: Any, seed: int) -> Any:
    return ("own agent", sorted(obs_space), sorted(act_space), seed)


def test_the_agent_gets_the_spaces_of_the_environment_and_the_seed() -> None:
    assert isinstance(build.make_agent(config_of("agent=random")), RandomAgent)
    name, obs_keys, act_keys, seed = build.make_agent(config_of(f"agent={__name__}:make_own_agent", "seed=5"))  # type: ignore[misc]
    assert (name, act_keys, seed) == ("own agent", ["action", "reset"], 5)
    assert "image" in obs_keys


class PlainAgent:
    def __init__(self, obs_space: Any, act_space: Any, seed: int) -> None: ...


class TellingAgent(PlainAgent):
    row_space = {"image": Space(np.uint8)}  # noqa: RUF012


def test_an_agent_that_does_not_tell_its_rows_gets_those_of_the_environment() -> None:
    plain: Any = build.make_agent(config_of(f"agent={__name__}:PlainAgent"))
    assert plain.row_space == finite(Dummy().obs_space)
    telling: Any = build.make_agent(config_of(f"agent={__name__}:TellingAgent"))
    assert telling.row_space == {"image": Space(np.uint8)}


class CannotClose(Dummy):
    def close(self) -> None:
        raise OSError("the window is gone")


def test_an_environment_that_cannot_be_closed_still_gives_its_spaces() -> None:
    config = config_of("agent=random", f"env={__name__}:CannotClose")
    assert isinstance(build.make_agent(config), RandomAgent)
    assert describe_spaces(config)["act"].keys() == {"action", "reset"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rndom", "unknown agent 'rndom': use agent=dreamer or agent=random, or agent=package.module:factory"),
        ("no.such.module:make", "agent 'no.such.module:make': cannot import 'no.such.module'"),
        ("dreamfleet.agent.random_agent:nothing", "has no callable 'nothing'"),
    ],
)
def test_an_agent_that_does_not_exist_is_found_before_anything_starts(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build.check_names(config_of(f"agent={name}"))


def test_an_environment_that_does_not_exist_is_found_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="unknown environment 'dumy'"):
        build.check_names(config_of("env=dumy"))
    build.check_names(config_of())


def replays_of(*overrides: str) -> list[ReplayOptions]:
    return [replay_options(config_of(*overrides), Path("run"), mode) for mode in ("train", "eval")]


def test_replays_hold_windows_as_long_as_the_batches_need() -> None:
    train, evaluation = replays_of(
        "batch_size=2", "batch_length=10", "consec_train=3", "report_length=7", "replay_context=1", "replay.size=1000"
    )
    assert (train.length, train.capacity, train.context, train.online) == (31, 1000, 1, True)
    assert (evaluation.length, evaluation.capacity, evaluation.context, evaluation.online) == (8, 100, 1, False)


def test_the_train_replay_also_serves_reports_that_are_longer_than_training() -> None:
    assert replays_of("batch_length=4", "report_length=20", "replay_context=0")[0].length == 20


def test_a_small_eval_replay_still_holds_a_batch() -> None:
    assert replays_of("replay.size=1040")[1].capacity == 16 * 33


def test_replays_are_kept_in_folders_of_their_own_and_draw_differently() -> None:
    train, evaluation = replays_of("seed=3")
    assert (train.folder, evaluation.folder) == (Path("run/replay/train"), Path("run/replay/eval"))
    assert (train.seed, evaluation.seed) == (3, 4)


def test_what_is_configured_for_training_reaches_its_replay_only() -> None:
    train, evaluation = replays_of(
        "replay.fracs={uniform: 0.5, priority: 0.3, recency: 0.2}", "replay.prio.initial=2", "replay.recexp=0.5"
    )
    assert train.fracs == {"uniform": 0.5, "priority": 0.3, "recency": 0.2}
    assert train.priority == {"exponent": 0.8, "maxfrac": 0.5, "initial": 2.0, "zero_on_sample": True}
    assert train.recency_exponent == 0.5
    assert evaluation.fracs == {"uniform": 1.0}


def test_dreamer_gives_priorities_to_a_replay_that_draws_by_them_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ComputeOptions] = []
    monkeypatch.setattr("dreamfleet.agent.dreamer.DreamerAgent", lambda *args: made.append(args[4]))
    monkeypatch.setattr("dreamfleet.launch.dreamer.set_environment", lambda group: None)
    for overrides in ([], ["replay.fracs={uniform: 0.5, priority: 0.5}"]):
        make_dreamer(
            config_of("jax.concurrent=false", *overrides),
            {"x": Space(np.float32, (2,))},
            {"move": Space(np.int32, (), 0, 3)},
            None,
        )
    assert [compute.priorities for compute in made] == [False, True]


def test_bytes_and_chunks_are_limited_as_configured() -> None:
    train, evaluation = replays_of("replay.size_bytes=2e9", "replay.chunksize=256")
    assert (train.size_bytes, evaluation.size_bytes) == (2_000_000_000, 200_000_000)
    assert train.chunksize == evaluation.chunksize == 256


def test_a_replay_is_built_from_its_options(tmp_path) -> None:
    replay: Any = build.make_replay(config_of(), tmp_path, "eval")
    assert replay.options == replay_options(config_of(), tmp_path, "eval")
    replay.close()


@pytest.mark.parametrize(("mode", "length", "consec"), [("train", 10, 3), ("report", 7, 2), ("eval", 7, 2)])
def test_streams_cut_as_configured(tmp_path, mode: str, length: int, consec: int) -> None:
    config = config_of("batch_size=5", "batch_length=10", "consec_train=3", "report_length=7", "consec_report=2")
    replay = build.make_replay(config, tmp_path, "train")
    stream: Any = build.make_stream(config, replay, mode)
    replay.close()
    assert (stream.mode, stream.batch_size, stream.length, stream.consec, stream.context) == (
        mode,
        5,
        length,
        consec,
        1,
    )


def test_factories_build_what_they_are_named_for(tmp_path) -> None:
    factories = build.make_factories(config_of("env.kwargs.size=8"), tmp_path)
    env = factories.make_env_train(0)
    start: Arrays = {"action": 0, "reset": True}  # type: ignore[dict-item]
    assert (env.step(start)["image"] != factories.make_env_eval(0).step(start)["image"]).any()
    assert (env.step(start)["image"] != factories.make_env_train(0, life=10).step(start)["image"]).any()
    logger: Any = factories.make_logger()
    logger.add({"x": 1})
    logger.write()
    logger.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["x"] == 1


def write_fleet(folder: Path, **args: Any) -> Path:
    """A fleet file as the launcher writes it."""
    addresses = {
        "actor_addr": "ipc:///tmp/gone/actor,tcp://127.0.0.1:5001",
        "replay_addr": "ipc:///tmp/gone/replay,tcp://*:5002",
        "logger_addr": "tcp://10.0.0.9:5003",
    }
    config = config_of()
    flat = FleetArgs.from_config(config, folder).model_copy(update={**addresses, **args})
    with RunFolder(folder) as run:
        create_keys(run.keys)
        run.write_fleet(describe_fleet(flat, run, config.model_dump()))
    return folder / "fleet.json"


def change(path: Path, **values: Any) -> Path:
    """As the launcher of another fleet with the same keys would have written it."""
    fleet = {**json.loads(path.read_text()), **values}
    del fleet["signatures"]
    path.write_text(json.dumps(sign(fleet, path.parent / "keys")))
    return path


def test_a_role_elsewhere_gets_addresses_it_can_reach(tmp_path) -> None:
    fleet = fleet_file.FleetFile(change(write_fleet(tmp_path), host="bigbox"), "worker")
    args = fleet.args()
    assert args.actor_addr == "tcp://127.0.0.1:5001"
    assert args.replay_addr == "tcp://bigbox:5002"
    assert args.logger_addr == "tcp://10.0.0.9:5003"
    assert args.logdir == str(tmp_path)
    assert args.public_keys == create_keys(tmp_path / "keys")
    assert fleet.config == config_of()


def test_a_role_elsewhere_gets_ipv6_addresses_it_can_reach(tmp_path) -> None:
    addresses = {"actor_addr": "tcp://[::]:5001", "replay_addr": "tcp://[fd00::1]:5002"}
    args = fleet_file.FleetFile(change(write_fleet(tmp_path, **addresses), host="bigbox"), "worker").args()
    assert args.actor_addr == "tcp://bigbox:5001"
    assert args.replay_addr == "tcp://[fd00::1]:5002"


def test_a_fleet_that_listens_on_this_machine_only_cannot_be_joined(tmp_path) -> None:
    path = write_fleet(tmp_path, actor_addr="ipc:///tmp/gone/actor")
    with pytest.raises(
        BadInput,
        match=r"the fleet's actor has no tcp address: start the fleet with "
        r"run.actor_addr=tcp",
    ):
        fleet_file.FleetFile(path, "worker").args("actor")


def test_a_worker_needs_the_address_of_the_actor_alone(tmp_path) -> None:
    local = {"replay_addr": "ipc:///tmp/gone/replay", "logger_addr": "ipc:///tmp/gone/logger"}
    fleet = fleet_file.FleetFile(write_fleet(tmp_path, **local), "worker")
    (spec,) = fleet_file.joining_envs(fleet, 1, "train")
    assert spec.target.args[2].actor_addr == "tcp://127.0.0.1:5001"  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match="the fleet's replay has no tcp address"):
        fleet.args("replay")


@pytest.mark.parametrize("text", [None, "", "{", "[]", '"text"', "{}", '{"format": 99}', '{"format": 1}'])
def test_a_file_that_is_no_fleet_file_is_bad_input(tmp_path, text: str | None) -> None:
    path = tmp_path / "fleet.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=r"fleet\.json"):
        fleet_file.FleetFile(path, "worker")


def test_a_fleet_started_in_code_says_how_to_join_it(tmp_path) -> None:
    with pytest.raises(BadInput, match="belongs to a fleet started from Python"):
        fleet_file.FleetFile(change(write_fleet(tmp_path), config=None), "worker")


def test_a_fleet_of_another_version_with_other_keys_is_bad_input(tmp_path) -> None:
    with pytest.raises(BadInput, match=r"fleet\.json was written by another version.*no_such_key"):
        fleet_file.FleetFile(change(write_fleet(tmp_path), config={"no_such_key": 1}), "worker")


def test_environments_that_join_are_numbered_by_the_actor_and_seeded_apart(tmp_path) -> None:
    fleet = fleet_file.FleetFile(write_fleet(tmp_path), "worker")
    specs = [fleet_file.joining_envs(fleet, 3, "eval")[0] for _ in range(2)]
    targets = [spec.target for spec in specs]
    assert all(isinstance(target, partial) for target in targets)
    make_env, indices, args, mode = targets[0].args  # type: ignore[attr-defined]
    assert (indices, mode, args.actor_addr) == ([-1, -2, -3], "eval", "tcp://127.0.0.1:5001")
    seeds = [target.args[0].args[0].seed for target in targets]  # type: ignore[attr-defined]
    assert seeds[0] != seeds[1]
    start = {"action": 0, "reset": True}
    assert (make_env(-1).step(start)["image"] != make_env(-2).step(start)["image"]).any()


def test_environments_that_join_show_what_those_of_the_fleet_show(tmp_path) -> None:
    config = parse_overrides(["agent=random", *CROSSING]).model_dump()
    fleet = fleet_file.FleetFile(change(write_fleet(tmp_path), config=config), "worker")
    (spec,) = fleet_file.joining_envs(fleet, 1, "train")
    there = spec.target.args[0](-1)  # type: ignore[attr-defined]
    here = build.make_env(fleet.config, "train", 0)
    assert there.obs_space == here.obs_space
    assert set(there.obs_space) - set(STEP_KEYS) == {"mission", "cars", "cars/mask", "x"}
    step = there.step({"action": np.zeros(1, np.float32), "reset": np.True_})
    assert step["x"].tolist() == [1, -1, 0.5]


def test_a_replay_joins_only_a_fleet_that_has_none(tmp_path) -> None:
    with pytest.raises(BadInput, match=r"start the fleet with run\.remote_replay=true"):
        fleet_file.joining_replay(fleet_file.FleetFile(write_fleet(tmp_path), "replay"))


def test_a_replay_that_joins_listens_where_the_fleet_expects_it(tmp_path) -> None:
    (spec,) = fleet_file.joining_replay(fleet_file.FleetFile(write_fleet(tmp_path, remote_replay=True), "replay"))
    assert spec.name == "replay"
    target: Any = spec.target
    assert target.args[-1].replay_addr == "tcp://*:5002"
    assert target.args[0].args == (config_of(), tmp_path, "train")


def test_a_replay_that_joins_takes_over_a_folder_that_the_learner_has_left(tmp_path) -> None:
    owner = tmp_path / "snapshots" / "learner.json"
    fleet = fleet_file.FleetFile(write_fleet(tmp_path, remote_replay=True), "replay")
    Snapshots(tmp_path).claim()
    with RunFolder(tmp_path):
        fleet_file.joining_replay(fleet)
        assert owner.exists()
    fleet_file.joining_replay(fleet)
    assert not owner.exists()
