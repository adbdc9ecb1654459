"""What a user gets for a mistake: one clear message, soon, and a non-zero exit code."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from support import cli_fleet
from support.cli_fleet import TESTS, dreamfleet, environment
from support.fleet_probe import events_of, read_events

SECONDS = 20.0  # includes the start of Python and of the processes on a busy machine
TO_END_S = 10.0  # from a failure to the end of the fleet
PROGRESS = ("starting", "running: ", "stopping: ", "failed")  # lines that come every ten seconds

TINY_DREAMER = ["tiny", "cpu", "agent=dreamer", "batch_size=4", "batch_length=8", "report_length=8"]


def train(run: Path | str, *overrides: str) -> tuple[int, list[str]]:
    start = time.monotonic()
    small = ["run.envs=1", "run.eval_envs=0", "replay.size=1e5"]
    result = dreamfleet("train", "agent=random", *overrides, *small, "--run-dir", str(run))
    assert time.monotonic() - start < SECONDS
    if failures := events_of(Path(run), "failure"):
        assert read_events(Path(run))[-1]["time"] - failures[0]["time"] < TO_END_S
    return result.returncode, [line for line in result.stderr.splitlines() if not line.startswith(PROGRESS)]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["run.stepz=5"], "dreamfleet: unknown config key 'run.stepz': did you mean 'run.steps'?"),
        (["run.steps=many"], "run.steps"),
        (["env=dumy"], "dreamfleet: unknown environment 'dumy': did you mean 'dummy'?"),
        (["env=no_such_module:make"], "cannot import 'no_such_module'"),
        (["env=support.user_envs:missing"], "'support.user_envs' has no callable 'missing'"),
        (["env=support.faulty_envs:spaces"], "'support.faulty_envs' has no callable 'spaces': it is of type module"),
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env=support.faulty_envs:Empty"], "observation_space has shape (0,), which holds nothing: remove it"),
        (["env=support.faulty_envs:ManyActions"], "the action 'action' has 1000000 choices in all, which is too many"),
        (
            ["env=support.faulty_envs:Board", "env.read={code: classes}"],
            "'code' has 76800 classes in all, which is too many",
        ),
        (
            ["env=support.faulty_envs:Board", "env.read={bord: numbers}"],
            "env.read names 'bord', which support.faulty_envs:Board does",
        ),
        (
            ["env=support.faulty_envs:OneChoice"],
            "the action 'action' has an element with one choice only: leave it out",
        ),
        (
            ["env=catch", "env.size=80", "agent.enc.mults=[2, 3, 4, 4, 4]"],
            "images of 80x80: the encoder takes multiples of 32 from 96 to 512; set env.size, such as env.size=128",
        ),
        (
            ["env=bandit", "jax.mock_devices=2", "jax.train_devices=[0, 1]", "batch_size=5"],
            "batch_size=5 cannot be split across the 2 devices of jax.train_devices: set batch_size=4",
        ),
    ],
)
def test_what_dreamer_cannot_learn_from_is_one_line_and_code_2(tmp_path: Path, words: list[str], message: str) -> None:
    code, lines = train(tmp_path / "run", *TINY_DREAMER, *words)
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_snapshot_of_other_shapes_is_one_line_and_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["debug", "env=support.faulty_envs:Growing", "run.eval_envs=0", "run.steps=400", "agent.report=false"]
    words += ["--run-dir", str(tmp_path)]
    assert dreamfleet("train", *words, timeout_s=300).returncode == 0
    monkeypatch.setenv("FAULTY_ENVS_SIZE", "4")
    ended = dreamfleet("train", "run.steps=800", "--run-dir", str(tmp_path), timeout_s=300)
    assert ended.returncode == 2
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("dreamfleet: ")]
    assert "agent failed: the checkpoint is of another agent: " in line
    assert "world/enc/mlp/layers/0/linear/kernel is (3, 8) instead of (4, 8)" in line


@pytest.mark.parametrize(
    ("preset", "module", "extra"),
    [("atari", "ale_py", "atari"), ("dmc_proprio", "dm_control", "dmc"), ("memory_maze", "memory_maze", "memory-maze")],
)
def test_a_missing_extra_is_one_line_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, module: str, extra: str
) -> None:
    """Python runs a `sitecustomize` that it finds at its start; this one makes the module impossible to import."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    with_blocker = {**environment(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"}
    monkeypatch.setattr(cli_fleet, "environment", lambda: with_blocker)
    ended = dreamfleet("train", preset, "--run-dir", str(tmp_path / "run"))
    suite = preset.partition("_proprio")[0]
    expected = f"suite {suite!r} needs {module}, not installed here: pip install 'dreamfleet[{extra}]'"
    assert (ended.returncode, ended.stderr) == (2, f"dreamfleet: {expected}\n")
    assert not (tmp_path / "run").exists()


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


def line_of(module: str, text: str) -> str:
    """The file and line of one of the tests' modules, as messages name them."""
    path = TESTS / "support" / f"{module}.py"
    (number,) = [number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    return f"{path}:{number}"


def test_a_factory_that_raises_is_shown_with_its_traceback_last(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=support.user_envs:raising")
    assert code == 1
    assert lines[0].startswith("Traceback")
    assert lines[-2] == "ValueError: the simulator is not installed"
    assert lines[-1] == (
        "dreamfleet: environment 'support.user_envs:raising' cannot be made: ValueError: "
        "the simulator is not installed, "
        f"raised at {line_of('user_envs', 'is not installed')} in raising"
    )


def test_an_environment_that_fails_at_every_step_is_given_up_at_once_with_its_first_error(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=support.faulty_envs:EveryStepRaises", "run.envs=4", "run.envs_per_worker=2")
    assert code == 1
    place = f"raised at {line_of('faulty_envs', 'has no licence')} in step"
    error = f"RuntimeError: the simulator has no licence, {place}"
    (said,) = [line for line in lines if "is being restarted" in line]
    assert said.endswith(f"(support.faulty_envs:EveryStepRaises) failed and is being restarted: {error}")
    assert lines[-1].endswith(
        f"(support.faulty_envs:EveryStepRaises) failed 4 times and never made a step; the first error: {error}"
    )
    assert len(events_of(tmp_path, "env_restart")) <= 4 * 3
    assert events_of(tmp_path, "restart") == []


def test_an_environment_that_ends_its_process_at_every_step_is_given_up_soon(tmp_path: Path) -> None:
    few = ["run.envs=1", "run.eval_envs=0", "replay.size=1e5"]
    ended = dreamfleet(
        "train", "agent=random", "env=support.faulty_envs:EveryStepAborts", *few, "--run-dir", str(tmp_path)
    )
    lines = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert "env-0 died: signal 6 (SIGABRT)" in lines[-1]
    assert lines[-1].endswith("; it died 3 times before any of its environments made a step")
    place = line_of("faulty_envs", "os.abort()").replace(".py:", '.py", line ')
    assert f'  File "{place} in step' in lines
    assert len(events_of(tmp_path, "restart")) == 2


def test_an_observation_that_breaks_its_space_is_one_line(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=support.user_envs:WrongShape")
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("dreamfleet: env-0 failed: train environment 0 (WrongShape): observation 'vector' has")
    assert "shape (3,) instead of (5,)" in lines[0]


def test_an_observation_of_another_shape_after_hundreds_of_steps_is_one_line(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=support.faulty_envs:LateWrongShape")
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("dreamfleet: env-0 failed: train environment 0 (support.faulty_envs:LateWrongShape)")
    assert "'obs'" in lines[0]
    assert "(2,)" in lines[0]
    assert "(3,)" in lines[0]


def test_a_piece_that_is_none_of_a_board_ends_the_run_in_one_line(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=support.faulty_envs:BoardOutOfBounds", "run.steps=1000")
    assert code == 1
    (line,) = lines
    assert line.startswith("dreamfleet: env-0 failed: train environment 0 (support.faulty_envs:BoardOutOfBounds)")
    assert "observation 'board' has value 200 at " in line and " above 5" in line


def test_what_is_done_to_images_is_said_at_the_start_and_noted_as_an_event(tmp_path: Path) -> None:
    arguments = ["agent=random", "env=support.faulty_envs:Large", "run.steps=100", "run.envs=1", "run.eval_envs=0"]
    result = dreamfleet("train", *arguments, "replay.size=1e5", "batch_size=2", "--run-dir", str(tmp_path))
    assert result.returncode == 0
    said = [line for line in result.stderr.splitlines() if "210x160" in line]
    assert len(said) == 1
    assert said[0].startswith("starting: image 'image' of 210x160 is resized to 64x64")
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["detail"]["text"] for event in events if event["event"] == "note"] == [said[0][len("starting: ") :]]


def test_an_environment_that_raises_later_ends_the_run_and_is_named(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=support.user_envs:RaisesLater", "env.restarts=2")
    assert code == 1
    assert lines[-1].startswith("dreamfleet: train environment 0 (RaisesLater) failed 3 times")
    place = line_of("user_envs", "the robot fell over")
    assert lines[-1].endswith(f"the first error: RuntimeError: the robot fell over, raised at {place} in step")


def test_an_error_of_the_policy_is_the_agents_and_is_shown_with_its_traceback(tmp_path: Path) -> None:
    code, lines = train(tmp_path, "env=support.user_envs:Tiny", "agent=support.user_envs:PolicyFails")
    assert code == 1
    assert lines[0].startswith("Traceback")
    assert 'return obs["velocity"]' in "\n".join(lines)
    assert lines[-1] == "dreamfleet: agent failed: KeyError: 'velocity'"


def test_env_workers_load_no_device_library(tmp_path: Path) -> None:
    _, lines = train(tmp_path, "env=support.user_envs:ReportsModules", "env.restarts=0")
    assert "device libraries in the worker: [], raised at " in lines[-1]
