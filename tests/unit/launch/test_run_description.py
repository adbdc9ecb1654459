"""What a run's status says about it from the start."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import parse_overrides
from dreamfleet.core.encoding.strict_json import encode
from dreamfleet.core.spaces import Space
from dreamfleet.launch import worker_size
from dreamfleet.launch.env_probe import EnvSpaces
from dreamfleet.launch.run_description import about_run, describe_space, describe_spaces


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Space(np.uint8, (64, 64, 3)), "64x64x3 pixels"),
        (Space(np.int32, (), 0, 17), "17 choices"),
        (Space(np.int32, (4,), 0, 3), "4 of 3 choices each"),
        (Space(np.int32, (2,), 0, [3, 5]), "2 int32"),
        (Space(bool), "2 choices"),
        (Space(np.float32), "one float32"),
        (Space(np.float32, (6,), -1, 1), "6 float32 from -1 to 1"),
        (Space(np.float32, (6,)), "6 float32"),
        (Space(np.int64), "one int64"),
    ],
)
def test_spaces_are_described_in_words(space: Space, words: str) -> None:
    assert describe_space(space) == words


def test_only_what_the_agent_sees_is_described_and_only_so_much_of_it() -> None:
    usual = {"reward": Space(np.float32), "is_first": Space(bool), "reset": Space(bool), "log/x": Space(np.float32)}
    many = {f"key{number}": Space(np.float32) for number in range(6)}
    assert list(describe_spaces({**usual, "key": Space(np.float32)})) == ["key: one float32"]
    assert list(describe_spaces({**usual, **many}))[3:] == ["key3: one float32", "and 2 more"]


def test_a_run_with_a_configuration_is_told_in_full(tmp_path) -> None:
    config = parse_overrides(["env=catch", "agent.size=tiny", "run.steps=1e4", "jax.platform=cpu"])
    spaces = EnvSpaces({"image": Space(np.uint8, (8, 8, 1))}, {"action": Space(np.int32, (), 0, 3)}, ("a note",))
    about = about_run(FleetArgs.from_config(config, tmp_path), tmp_path, config, spaces)
    assert (about["task"], about["agent"], about["steps"]) == ("catch", "dreamer tiny", 10_000)
    assert (about["obs"], about["act"], about["notes"]) == (["image: 8x8x1 pixels"], ["action: 3 choices"], ["a note"])
    assert about["memory_bytes"] > 0
    assert about["devices"] == "cpu in bfloat16"
    assert len(encode(about)) < 1500  # it is written every second


def test_an_agent_that_needs_no_device_names_none(tmp_path) -> None:
    config = parse_overrides(["agent=random"])
    about = about_run(FleetArgs.from_config(config, tmp_path), tmp_path, config, None)
    assert about["agent"] == "random"
    assert "devices" not in about


def test_a_fleet_of_a_users_own_program_is_told_as_far_as_known(tmp_path) -> None:
    about = about_run(FleetArgs(steps=500), tmp_path, None, None)
    assert about["steps"] == 500
    assert "task" not in about


def test_an_update_uses_up_the_windows_of_one_of_the_batches_cut_from_them(tmp_path) -> None:
    args = FleetArgs(batch_size=16, batch_length=64, consec_train=2)
    assert about_run(args, tmp_path, None, None)["update_windows"] == 8


@pytest.mark.parametrize(("words", "workers"), [([], 2), (["run.remote_envs=true"], 0), (["run.script=single"], 0)])
def test_what_the_fleet_chose_for_itself_is_told(tmp_path, monkeypatch, words: list[str], workers: int) -> None:
    monkeypatch.setattr(worker_size, "usable_cores", lambda: 16.0)
    config = parse_overrides(["env=catch", "run.envs=16", *words])
    about = about_run(worker_size.fleet_args(config, tmp_path), tmp_path, config, None)
    assert (about["workers"], about["actor_rows"], about["batches_ahead"]) == (workers, 8, 3)
