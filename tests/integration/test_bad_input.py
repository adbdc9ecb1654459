"""What a user gets for a mistake: one clear message, soon, and a non-zero exit code."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from cli_fleet import dreamfleet

SECONDS = 20.0  # includes the start of Python and of the processes on a busy machine


def train(run: Path | str, *overrides: str) -> tuple[int, list[str]]:
    start = time.monotonic()
    small = ["run.envs=1", "run.eval_envs=0", "replay.size=1e5"]
    result = dreamfleet("train", "agent=random", *overrides, *small, "--run-dir", str(run))
    assert time.monotonic() - start < SECONDS
    return result.returncode, [
        line for line in result.stderr.splitlines() if not line.startswith(("starting", "failed"))
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["run.stepz=5"], "dreamfleet: unknown config key 'run.stepz': did you mean 'run.steps'?"),
        (["run.steps=many"], "run.steps"),
        (["env=dumy"], "dreamfleet: unknown environment 'dumy': did you mean 'dummy'?"),
        (["env=no_such_module:make"], "cannot import 'no_such_module'"),
        (["env=user_envs:missing"], "'user_envs' has no callable 'missing'"),
        (["env=faulty_envs:spaces"], "'faulty_envs' has no callable 'spaces': it is of type module"),
        (["env=atary:pong"], "dreamfleet: unknown environment 'atary:pong': did you mean 'atari:pong'?"),
        (["env=gym:CartPol-v1"], "Gymnasium has no environment 'CartPol-v1': did you mean 'CartPole-v1'"),
        (["env=atari:pongg"], "suite 'atari' has no task 'pongg': did you mean atari:pong?"),
        (["env.kwargs.lenght=5"], "'dummy' does not take env.kwargs.lenght: did you mean env.kwargs.length?"),
        (["env.size=50"], "env.size"),
        (["agent=dreamr"], "unknown agent 'dreamr'"),
        (["run.actor_addr=tcp://127.0.0.1:0"], "port"),
        (["run.replay_addr=udp://127.0.0.1:5"], "udp://127.0.0.1:5"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_code_2(tmp_path: Path, overrides: list[str], message: str) -> None:
    code, lines = train(tmp_path / "run", "env=dummy", *overrides)
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]


def test_an_address_in_use_is_one_line_and_code_2(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        code, lines = train(tmp_path, "env=dummy", f"run.replay_addr={address}")
    assert code == 2
    assert len(lines) == 1
    assert f"run.replay_addr: cannot listen on {address}" in lines[0]


def test_an_unwritable_run_folder_is_one_line_and_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, lines = train(tmp_path / "file" / "run", "env=dummy")
    assert code == 2
    assert len(lines) == 1
    assert "cannot write the run folder" in lines[0]


def test_a_factory_that_raises_is_shown_with_its_traceback_last(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=user_envs:raising")
    assert code == 1
    assert lines[0].startswith("Traceback")
    assert lines[-2] == "ValueError: the simulator is not installed"
    assert lines[-1].endswith("failed: ValueError: the simulator is not installed")


def test_an_observation_that_breaks_its_space_is_one_line(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=user_envs:WrongShape")
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("dreamfleet: env-0 failed: train environment 0 (WrongShape): observation 'vector' has")
    assert "shape (3,) instead of (5,)" in lines[0]


def test_an_observation_of_another_shape_after_hundreds_of_steps_is_one_line(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=faulty_envs:LateWrongShape")
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("dreamfleet: env-0 failed: train environment 0 (faulty_envs:LateWrongShape)")
    assert "'obs'" in lines[0]
    assert "(2,)" in lines[0]
    assert "(3,)" in lines[0]


def test_what_is_done_to_images_is_said_at_the_start_and_noted_as_an_event(tmp_path: Path) -> None:
    arguments = ["agent=random", "env=faulty_envs:Large", "run.steps=100", "run.envs=1", "run.eval_envs=0"]
    result = dreamfleet("train", *arguments, "replay.size=1e5", "batch_size=2", "--run-dir", str(tmp_path))
    assert result.returncode == 0
    said = [line for line in result.stderr.splitlines() if "210x160" in line]
    assert len(said) == 1
    assert said[0].startswith("starting: image 'image' of 210x160 is resized to 64x64")
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["detail"]["text"] for event in events if event["event"] == "note"] == [said[0][len("starting: ") :]]


def test_an_environment_that_raises_later_ends_the_run_and_is_named(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=user_envs:RaisesLater", "env.restarts=2")
    assert code == 1
    assert lines[-1].startswith("dreamfleet: env-0 failed: train environment 0 (RaisesLater) failed 3 times")
    assert lines[-1].endswith("RuntimeError: the robot fell over")


def test_an_error_of_the_policy_is_the_agents_and_is_shown_with_its_traceback(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=user_envs:Tiny", "agent=user_envs:PolicyFails")
    assert code == 1
    assert lines[0].startswith("Traceback")
    assert 'return obs["velocity"]' in "\n".join(lines)
    assert lines[-1] == "dreamfleet: agent failed: KeyError: 'velocity'"


def test_env_workers_load_no_device_library(tmp_path: Path) -> None:
    _, lines = train(tmp_path, "env=user_envs:ReportsModules", "env.restarts=0")
    assert lines[-1].endswith("device libraries in the worker: []")
