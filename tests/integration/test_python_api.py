"""Training from Python with an environment of the script's own, and what the documentation shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dreamfleet
from dreamfleet.commands.train import _resolve, read_result
from dreamfleet.config.load import parse_overrides
from dreamfleet.core.errors import ConfigError
from dreamfleet.launch.import_name import name_of
from support.cli_fleet import environment
from support.saved_runs import make_run
from user_package.robot import Robot

DOCS = Path(__file__).parents[2] / "docs" / "policies.md"
SMALL = ["agent=random", "replay.size=1e4", "batch_size=2", "batch_length=8", "report_length=4", "run.eval_envs=0"]

SCRIPT = """
import gymnasium
import dreamfleet

class Countdown(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 5, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.left = 5
        return self.see(), {}

    def step(self, action):
        self.left -= 1
        return self.see(), 2.0, self.left == 0, False, {}

    def see(self):
        return self.observation_space.low + self.left

"""
CALL = f"""
config = {[*SMALL, "run.steps=300", "run.envs=2", "run.log_every=1"]!r}
result = dreamfleet.train(config, env=Countdown, run_dir="run", quiet=True)
print(result.exit_code, result.ok, result.step, result.run_dir, result.metrics["episode/return"])
"""


def run_script(folder: Path, text: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
    (folder / "train_countdown.py").write_text(text)
    command = [sys.executable, "train_countdown.py"]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False
    )


def test_a_script_trains_on_its_own_environment(tmp_path) -> None:
    ended = run_script(tmp_path, SCRIPT + 'if __name__ == "__main__":\n' + textwrap.indent(CALL, "    "))
    assert ended.returncode == 0, ended.stderr
    code, ok, step, folder, score = ended.stdout.split()
    assert (code, ok, folder, float(score)) == ("0", "True", "run", 10.0)
    assert int(step) >= 300
    assert "name: train_countdown:Countdown" in (tmp_path / "run" / "config.yaml").read_text()


def test_a_script_without_a_guard_is_told_to_have_one(tmp_path) -> None:
    ended = run_script(tmp_path, SCRIPT + CALL)
    assert ended.returncode != 0
    assert 'put the call under `if __name__ == "__main__":`' in ended.stderr
    assert not (tmp_path / "run" / "snapshots").exists()


def make_local() -> Any:
    def local() -> None: ...

    return local


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: None, "cannot import lambdas"),
        (make_local(), "cannot import lambdas or nested definitions"),
        (partial(Robot, length=3), "pass its arguments as env.kwargs"),
    ],
)
def test_what_other_processes_cannot_import_is_refused(factory, message) -> None:
    with pytest.raises(ConfigError, match=message):
        name_of(factory, "env")


def test_what_can_be_imported_is_named_as_on_the_command_line() -> None:
    assert name_of(Robot, "env") == "user_package.robot:Robot"
    assert name_of("gym:CartPole-v1", "env") == "gym:CartPole-v1"


def test_a_configuration_may_be_words_a_mapping_or_whole(tmp_path) -> None:
    words = ["run.steps=5000", "env.kwargs.length=3", "batch_size=4"]
    by_words = _resolve(words, ["env=user_package.robot:Robot"], tmp_path)
    mapping = {"run.steps": 5000, "env.kwargs": {"length": 3}, "batch_size": 4}
    assert _resolve(mapping, ["env=user_package.robot:Robot"], tmp_path) == by_words
    assert by_words.env.kwargs == {"length": 3}
    whole = parse_overrides(["run.steps=5000"])
    assert _resolve(whole, [], tmp_path) == whole
    with pytest.raises(ConfigError, match="pass a list of such words"):
        _resolve("run.steps=5000", [], tmp_path)
    with pytest.raises(ConfigError, match=r"did you mean 'run\.steps'"):
        dreamfleet.train({"run.stepz": 5}, run_dir=tmp_path / "run")


def test_a_result_has_the_newest_value_of_every_metric(tmp_path) -> None:
    lines = ['{"step": 5, "time": 1.0, "train/loss": 2.0}', '{"step": 9, "time": 2.0, "fps/env": 3.0}', '{"st']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    result = read_result(1, tmp_path)
    assert (result.step, result.ok) == (9, False)
    assert (result.metrics["train/loss"], result.metrics["fps/env"]) == (2.0, 3.0)
    assert read_result(1, tmp_path / "nothing").step == 0


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", DOCS.read_text(), re.DOTALL)


def test_what_the_documentation_shows_works(tmp_path) -> None:
    """All of it in one process, on a run that was not trained; the script that trains has a test of its own kind."""
    make_run(tmp_path / "runs" / "cart", "env=gym:CartPole-v1")
    commands = [shlex.split(line)[1:] for block in blocks("sh") for line in block.splitlines() if line]
    assert all(block.splitlines()[0].startswith("dreamfleet ") for block in blocks("sh"))
    script = f"""
import sys, typer
sys.path.insert(0, "")
from dreamfleet import cli
for words in {commands!r}:
    cli.app(words, standalone_mode=False)
    print("ran", *words[:1], file=sys.stderr)
"""
    python = [block for block in blocks("python") if "__main__" not in block]
    for number, block in enumerate(python):
        script += f"exec(compile({block!r}, 'block {number}', 'exec'), {{'__name__': 'docs'}})\n"
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**environment(), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=115,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("ran eval") == 3
    assert ended.stderr.count("ran export") == 1
    assert len(python) == 4
    assert (tmp_path / "cart.mp4").exists()
    assert (tmp_path / "cart.zip").exists()


def test_the_documented_script_trains(tmp_path) -> None:
    (script,) = (block for block in blocks("python") if "__main__" in block)
    quick = str([*SMALL, "run.steps=200", "run.envs=2"])
    shortened, count = re.subn(r"\[\"size1m\".*?\]", lambda found: quick, script, flags=re.DOTALL)
    assert count == 1
    ended = run_script(tmp_path, shortened)
    assert ended.returncode == 0, ended.stderr
    assert "trained to step" in ended.stdout
