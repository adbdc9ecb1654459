"""Every command in the documents is right, and runs, in the order in which a reader would type them."""

from __future__ import annotations

import gzip
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from dreamfleet.cli import app
from dreamfleet.config.load import parse_overrides
from dreamfleet.envs import registry
from support.cli_fleet import environment
from support.documents import ROOT, documents, read_document
from support.fleet_probe import events_of, wait_until

# What makes a command brief; its other words stay as they are.
SHORT = ["run.steps=800", "run.duration=60", "run.log_every=1"]
SMALL = ["batch_size=2", "batch_length=8", "report_length=4", "replay.size=1e5", "run.envs=2", "run.eval_envs=0"]
FRAMES = 40_000  # in which some episodes of any game end
# Tested with a run of their own: tests/integration/test_{evaluation,python_api}.py.
ELSEWHERE = ["docs/policies.md"]
PACKAGE = """
import gymnasium
gymnasium.register("Rover-v0", "my_envs:Rover")
"""


@pytest.mark.parametrize("document", documents())
def test_options_and_keys_exist(document: str) -> None:
    for words in read_document(ROOT / document).commands:
        context = parse(words)
        overrides = context.params.get("words") or []
        parse_overrides([word for word in overrides if not word.endswith(".npz")])


def parse(words: Sequence[str]) -> Any:
    """The context of the innermost command; raises for an option that there is not."""
    command: Any = typer.main.get_command(app)
    context = None
    rest = list(words)
    while hasattr(command, "commands"):
        context, command = None, command.commands[rest.pop(0)]
    context = command.make_context(words[0], rest)
    return context


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", [name for name in documents() if name not in ELSEWHERE])
def test_commands_run(document: str, tmp_path: Path) -> None:
    found = read_document(ROOT / document)
    for name, text in {"my_package.py": PACKAGE, **found.files}.items():
        (tmp_path / name).write_text(text)
    write_episodes(tmp_path / "episodes")
    write_curves(tmp_path / "atari100k-dreamerv3.json.gz")
    for words, following in itertools.zip_longest(found.commands, found.commands[1:]):
        if words[0] == "role":
            continue  # joins a fleet that runs, below
        if following and following[0] == "role":
            run_with_role(words, following, tmp_path)
        else:
            run(["-m", "dreamfleet", *shortened(words)], tmp_path)
    for number, text in enumerate(found.scripts):
        (tmp_path / f"script_{number}.py").write_text(text)
        run([f"script_{number}.py"], tmp_path)


def shortened(words: Sequence[str]) -> list[str]:
    """A run that goes on keeps its configuration, and one that names a preset its agent."""
    if words[0] == "reproduce":
        return [*words, "--frames", str(FRAMES), "agent=random", *SMALL]
    if words[0] != "train" or "--print-config" in words:
        return list(words)
    fresh = any("=" in word for word in words)
    own_agent = any(word.startswith("agent") for word in words)
    agent = [] if own_agent or not fresh else ["agent=random"]
    return [*words, *agent, *(SMALL if fresh else []), *SHORT]


def run(words: Sequence[str], folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, f"{' '.join(words)}\n{ended.stdout}\n{ended.stderr}"


def run_with_role(words: Sequence[str], role: Sequence[str], folder: Path) -> None:
    """The run goes on until the role has joined."""
    program = [sys.executable, "-m", "dreamfleet"]
    at = folder / words[words.index("--run-dir") + 1]
    started = [*program, *words, "agent=random", *SMALL, "run.steps=1e9"]
    processes = [subprocess.Popen(started, cwd=folder, env=environment(), stderr=subprocess.DEVNULL)]
    try:
        wait_until(lambda: len(events_of(at, "ready")) >= 4, 60.0, f"{words} ready")
        processes.append(
            subprocess.Popen([*program, *role], cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)
        )
        wait_until(lambda: any(at.glob("remote/*/status.json")), 30.0, f"{role} to join")
        assert processes[1].poll() is None
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def write_curves(path: Path) -> None:
    curve = {"task": "atari_boxing", "method": "dreamerv3", "seed": 0, "xs": [FRAMES], "ys": [1.0]}
    path.write_bytes(gzip.compress(json.dumps([curve]).encode()))


def write_episodes(folder: Path) -> None:
    """Three episodes of the built-in dummy."""
    folder.mkdir()
    env: Any = registry.make_env("dummy", 0, 0, {})
    for number in range(3):
        steps = []
        lowest = {key: space.low.astype(space.dtype) for key, space in env.act_space.items()}
        action = {**lowest, "reset": np.bool_(True)}
        while not steps or not steps[-1]["is_last"]:
            obs = env.step(action)
            action = {**action, "reset": np.bool_(False)}
            steps.append({**obs, **{key: value for key, value in action.items() if key != "reset"}})
        np.savez(folder / f"{number}.npz", **{key: np.stack([step[key] for step in steps]) for key in steps[0]})
