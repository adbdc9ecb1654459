"""The command line's own part: what it refuses, with which words and exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dreamfleet import cli
from dreamfleet.cli import machine
from dreamfleet.commands.doctor.findings import Finding
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import parse_overrides, save_config
from dreamfleet.core.errors import RoleFailed
from dreamfleet.launch import fleet_file, launcher
from dreamfleet.runs.run_folder import RunFolder

NO_FOLDER = "a run needs a folder: add --run-dir DIR, such as --run-dir runs/first"


def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    """The exit code and the lines on stderr."""
    monkeypatch.setattr(sys, "argv", ["dreamfleet", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0), capsys.readouterr().err.splitlines()


@pytest.fixture
def run(monkeypatch, capsys):
    def no_supervisor(*args: Any, **options: Any) -> Any:
        raise AssertionError("nothing may start")

    monkeypatch.setattr(launcher, "Supervisor", no_supervisor)
    return lambda *words: run_cli(monkeypatch, capsys, *words)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.stepz=5", "unknown config key 'run.stepz': did you mean 'run.steps'?"),
        ("steps=5", "unknown config key 'steps': did you mean 'run.steps'?"),
        ("run.steps=many", "config key 'run.steps' cannot be 'many': expected a whole number"),
        ("run.envs=0", "run.envs=0 leaves no environments to collect steps"),
        ("replay.size=5", "replay.size=5 is smaller than one batch of 16 x 65 steps"),
        ("nonsense", "unknown preset 'nonsense': choose from defaults, atari,"),
        ("crafer", "unknown preset 'crafer': did you mean crafter or paper_crafter?"),
        ("jax.train_devices=[0,1,2]", "batch_size=16 cannot be split across the 3 devices of jax.train_devices"),
        ("run.steps=500", "run.steps=500 is less than one batch"),
        (r"agent\..*\.unit=5", "no config key matches"),
        ("env=dumy", "unknown environment 'dumy': did you mean 'dummy'?"),
        ("agent=rndom", "unknown agent 'rndom'"),
        ("agent=no.such:thing", "cannot import 'no.such'"),
    ],
)
def test_bad_input_ends_with_one_line_and_code_2(run, tmp_path, override: str, message: str) -> None:
    code, lines = run("train", override, "--run-dir", str(tmp_path / "run"))
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("dreamfleet: ")
    assert message in lines[0]
    assert not (tmp_path / "run").exists()


def test_presets_that_conflict_end_with_one_line_and_code_2(run, tmp_path) -> None:
    code, lines = run("train", "atari", "size1m", "crafter", "--run-dir", str(tmp_path / "run"))
    expected = (
        "dreamfleet: presets 'atari' and 'crafter' conflict, they set env.name to atari:pong and crafter:reward: "
    )
    assert (code, lines) == (2, [expected + "choose one of them"])
    assert not (tmp_path / "run").exists()


def test_a_run_folder_of_another_task_ends_with_one_line_and_code_2(run, tmp_path) -> None:
    save_config(parse_overrides(["env=catch"]), tmp_path / "config.yaml")
    (tmp_path / "episodes.jsonl").write_text("{}\n")
    code, lines = run("train", "env=bandit", "--run-dir", str(tmp_path))
    assert code == 2
    assert len(lines) == 1
    assert f"in {tmp_path}, which contains a run of catch, not of bandit: choose another --run-dir" in lines[0]


def test_a_run_without_a_folder_is_refused_but_its_configuration_is_shown(run, capsys, monkeypatch) -> None:
    assert run("train", "cpu") == (2, [f"dreamfleet: {NO_FOLDER}"])
    monkeypatch.setattr(sys, "argv", ["dreamfleet", "train", "cpu", "seed=5", "--print-config"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    shown = {line.partition("  ")[0]: line.partition("# ")[2] for line in capsys.readouterr().out.splitlines()}
    assert (shown["seed: 5"], shown["batch_size: 16"]) == ("override", "default")


def test_a_run_folder_that_cannot_be_written_ends_with_one_line_and_code_2(run, tmp_path) -> None:
    (tmp_path / "file").write_text("not a folder")
    code, lines = run("train", "--run-dir", str(tmp_path / "file"))
    assert code == 2
    assert len(lines) == 1
    assert "cannot write the run folder" in lines[0]


@pytest.mark.parametrize("role", ["env", "replay"])
def test_a_missing_fleet_file_ends_with_one_line_and_code_2(run, tmp_path, role: str) -> None:
    code, lines = run("role", role, "--fleet", str(tmp_path / "fleet.json"))
    assert code == 2
    assert len(lines) == 1
    assert "cannot read the fleet file" in lines[0]


@pytest.fixture
def evil_fleet(tmp_path, monkeypatch) -> Path:
    """The file of a fleet whose environment leaves a file behind when its module is imported."""
    imported = tmp_path / "imported"
    (tmp_path / "evil.py").write_text(f"open({str(imported)!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = parse_overrides(["env=evil:make"])
    addresses = dict.fromkeys(fleet_file.ADDRESSES, "tcp://127.0.0.1:5555")
    args = FleetArgs.from_config(config, tmp_path).model_copy(update=addresses)
    with RunFolder(tmp_path) as folder:
        folder.write_fleet(fleet_file.describe_fleet(args, folder, config.model_dump(exclude_defaults=True)))
    return tmp_path / "fleet.json"


def test_code_that_is_not_pinned_is_refused_before_it_is_imported(run, evil_fleet: Path) -> None:
    code, lines = run("role", "env", "--fleet", str(evil_fleet), "--env", "mine:make")
    assert (code, len(lines)) == (2, 1)
    assert "the fleet file names 'evil:make', but --env allows only 'mine:make'" in lines[0]
    assert sorted(path.name for path in evil_fleet.parent.iterdir() if path.name in ("imported", "remote")) == []


@pytest.mark.parametrize("role", ["env", "replay"])
def test_a_changed_fleet_file_is_refused_before_anything_of_it_is_used(run, evil_fleet: Path, role: str) -> None:
    evil_fleet.write_text(evil_fleet.read_text().replace("5555", "5556"))
    code, lines = run("role", role, "--fleet", str(evil_fleet))
    assert (code, len(lines)) == (2, 1)
    assert f"was modified or does not belong to keys/{'worker' if role == 'env' else role}.json" in lines[0]
    assert sorted(path.name for path in evil_fleet.parent.iterdir() if path.name in ("imported", "remote")) == []


@pytest.mark.parametrize(
    "words",
    [["train"], ["fly"], ["role", "env"], ["role", "env", "--envs", "0", "--fleet", "x"], ["replay", "import", "x"]],
)
def test_a_command_that_is_incomplete_or_unknown_has_code_2(run, words: list[str]) -> None:
    assert run(*words)[0] == 2


@pytest.mark.parametrize("words", [["eval"], ["export"]])
def test_a_folder_without_a_run_ends_with_one_line_and_code_2(run, tmp_path, words: list[str]) -> None:
    file = [str(tmp_path / "policy.zip")] if words == ["export"] else []
    code, lines = run(*words, str(tmp_path / "typo"), *file)
    assert (code, len(lines)) == (2, 1)
    assert lines[0] == f"dreamfleet: {tmp_path / 'typo'} is not a run folder: it has no config.yaml"


def test_a_run_folder_in_use_ends_with_one_line_and_code_2(run, tmp_path) -> None:
    with RunFolder(tmp_path):
        code, lines = run("train", "--run-dir", str(tmp_path))
    assert code == 2
    assert len(lines) == 1
    assert f"is in use by another run (process {os.getpid()})" in lines[0]


@pytest.mark.parametrize("code", [0, 1, 130])
def test_the_fleets_exit_code_is_the_commands(monkeypatch, capsys, tmp_path, code: int) -> None:
    monkeypatch.setattr(launcher, "run_fleet", lambda *args: code)
    assert run_cli(monkeypatch, capsys, "train", "--run-dir", str(tmp_path))[0] == code


def test_an_error_that_is_not_the_users_has_code_1(monkeypatch, capsys, tmp_path) -> None:
    def fail(*args: Any) -> int:
        raise RoleFailed("replay failed")

    monkeypatch.setattr(launcher, "run_fleet", fail)
    assert run_cli(monkeypatch, capsys, "train", "--run-dir", str(tmp_path)) == (1, ["dreamfleet: replay failed"])


def test_a_continued_run_keeps_its_configuration(monkeypatch, capsys, tmp_path) -> None:
    seen: list[tuple[int, int, str]] = []

    def record(factories: Any, args: Any, on_status: Any, config: Any) -> int:
        seen.append((args.steps, args.seed, args.logdir))
        save_config(config, tmp_path / "config.yaml")
        return 0

    monkeypatch.setattr(launcher, "run_fleet", record)
    run_cli(monkeypatch, capsys, "train", "run.steps=2e4", "seed=3", "--run-dir", str(tmp_path))
    run_cli(monkeypatch, capsys, "train", "run.steps=5e4", "--run-dir", str(tmp_path))
    assert seen == [(20_000, 3, str(tmp_path)), (50_000, 3, str(tmp_path))]


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("note", 0), ("problem", 1)])
def test_doctor_fails_when_something_would_stop_training(monkeypatch, capsys, level: str, code: int) -> None:
    monkeypatch.setattr(machine, "examine", lambda: [Finding("disk", level, "what is there", "what to do")])
    assert run_cli(monkeypatch, capsys, "doctor")[0] == code
    assert run_cli(monkeypatch, capsys, "doctor", "--json")[0] == code


def test_bench_refuses_bad_input_and_passes_on_the_code_of_a_fleet_that_failed(run, monkeypatch) -> None:
    assert run("bench", "run.stepz=5") == (
        2,
        ["dreamfleet: unknown config key 'run.stepz': did you mean 'run.steps'?"],
    )
    monkeypatch.setattr(machine, "run_bench", lambda config, seconds: 130)
    assert run("bench")[0] == 130


def test_python_dash_m_dreamfleet_is_the_same_command(tmp_path) -> None:
    command = [sys.executable, "-m", "dreamfleet", "train", "run.stepz=5", "--run-dir", str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "dreamfleet: unknown config key 'run.stepz': did you mean 'run.steps'?\n"
    assert not Path(tmp_path / "run").exists()
