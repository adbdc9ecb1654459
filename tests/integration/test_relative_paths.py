"""Relative paths mean the folder that a command is given in, also where an environment takes its process elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dreamfleet import parallel
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import parse_overrides
from support.cli_fleet import dreamfleet, environment
from support.saved_runs import make_run

SMALL = ["replay.size=1e4", "batch_size=2", "batch_length=8", "report_length=4", "run.eval_envs=0", "run.envs=2"]


class Here:
    """The folder that commands are given in, beside the one that environments move to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.elsewhere = folder / "here", folder / "elsewhere"
        self.folder.mkdir()
        self.elsewhere.mkdir()

    @property
    def env(self) -> list[str]:
        return ["env=support.faulty_envs:Moves", f"env.kwargs.to={self.elsewhere}"]

    def train(self, *words: str, run: str = "runs/one") -> None:
        self.run("train", "agent=random", *self.env, *SMALL, *words, "--run-dir", run)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command, which must succeed and leave nothing in the other folder."""
        ended = dreamfleet(*arguments, folder=self.folder, timeout_s=110)
        assert ended.returncode == 0, ended.stderr
        assert list(self.elsewhere.iterdir()) == []
        return ended


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def test_a_run_in_one_process_and_every_command_on_it(here: Here) -> None:
    for steps in (300, 400):  # begins, and continues
        here.train("run.script=single", "run.log_every_steps=100", f"run.steps={steps}")
    run = here.folder / "runs/one"
    assert Snapshots(run).manifest()["step"] == 400
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 400
    assert any((run / "replay/train").iterdir())

    assert "400" in here.run("snapshot", "runs/one", "--list").stdout
    assert "runs/one" in here.run("status", "runs/one").stdout
    assert "snapshot" in here.run("replay", "info", "runs/one").stdout
    here.run("plot", "runs/one", "--out", "curve.png")
    assert (here.folder / "curve.png").exists()
    evaluated = here.run("eval", "runs/one", "--episodes", "1", "--video", "first.mp4", "--json")
    assert (here.folder / "first.mp4").exists()
    assert json.loads(evaluated.stdout)["video"] == "first.mp4"


def test_a_fleet_whose_agent_is_a_thread_of_the_launcher(here: Here) -> None:
    here.train("run.agent_process=false", "run.steps=300", "run.log_every=0.5")
    assert Snapshots(here.folder / "runs/one").manifest()["step"] >= 300


def test_a_run_begins_from_the_agent_of_another_one(here: Here) -> None:
    here.train("run.steps=100")
    here.train("run.steps=100", "run.from_checkpoint=runs/one", run="runs/two")
    events = (here.folder / "runs/two/events.jsonl").read_text()
    assert '"from_checkpoint"' in events


def test_a_policy_is_exported_to_the_folder_of_the_command(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here.folder)  # and back at the end: the run is made in this process
    make_run(here.folder / "run", *here.env, "env.size=64")
    ended = here.run("export", "run", "policy.zip")
    assert ended.stdout == "wrote policy.zip: the policy of run at step 700\n"
    assert (here.folder / "policy.zip").exists()


def test_folders_in_the_configuration_are_those_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = parse_overrides(["run.from_checkpoint=runs/one", "jax.cache=compiled"])
    assert config.run.from_checkpoint == str(tmp_path / "runs/one")
    assert config.jax.cache == str(tmp_path / "compiled")
    unset = parse_overrides(["run.from_checkpoint=''", "jax.cache=''"])
    assert (unset.run.from_checkpoint, unset.jax.cache) == ("", "")
    assert parse_overrides(["jax.cache=~/compiled"]).jax.cache == "~/compiled"  # a home may differ by machine


@pytest.mark.parametrize(
    ("function", "role", "makes"),
    [
        (parallel.parallel_agent, "dreamfleet.roles.agent.run_agent", 1),
        (parallel.parallel_replay, "dreamfleet.roles.replay.ReplayRole", 3),
        (parallel.parallel_logger, "dreamfleet.roles.logger.LoggerRole", 1),
    ],
)
def test_a_role_run_by_hand_has_the_run_folder_of_its_caller(
    here: Here, monkeypatch: pytest.MonkeyPatch, function, role: str, makes: int
) -> None:
    """Its factories may make an environment first."""
    monkeypatch.chdir(here.folder)
    seen: list[str] = []

    class Role:
        def __init__(self, *given: object) -> None:
            seen.extend(one.logdir for one in given if isinstance(one, FleetArgs))

        def run(self, *given: object) -> None:
            pass

    monkeypatch.setattr(role, Role)
    function(*[lambda: monkeypatch.chdir(here.elsewhere)] * makes, {"logdir": "run"})
    assert seen == [str(here.folder / "run")]


def test_training_from_python_in_the_process_that_the_environment_moves(here: Here) -> None:
    words = [*SMALL, "agent=random", "run.steps=300", "run.agent_process=false", f"env.kwargs.to={here.elsewhere}"]
    script = f"""
import dreamfleet
from support.faulty_envs import Moves

if __name__ == "__main__":
    result = dreamfleet.train({words!r}, env=Moves, run_dir="run", quiet=True)
    print(result.exit_code, result.step, result.run_dir)
"""
    (here.folder / "script.py").write_text(script)
    command = [sys.executable, "script.py"]
    ended = subprocess.run(
        command, cwd=here.folder, env=environment(), capture_output=True, text=True, timeout=110, check=False
    )
    assert ended.returncode == 0, ended.stderr
    code, step, folder = ended.stdout.split()
    assert (code, folder) == ("0", "run")
    assert int(step) >= 300
    assert list(here.elsewhere.iterdir()) == []
