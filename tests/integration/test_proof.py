"""The proof's pipeline in small with real runs: train, interrupt, resume, collect, table and figure."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = [f"dmc_proprio-cartpole_swingup-tiny-seed{seed}" for seed in (0, 1)]
LIST = """
words: [agent=random, cpu, batch_length=32, report_length=32, run.envs=2, run.eval_envs=0, replay.size=1e4]
runs:
  - {suite: dmc_proprio, tasks: [cartpole_swingup], size: tiny, seeds: [0, 1], frames: 16000, minutes: 1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "list.yaml").write_text(LIST)
    xs = [1000.0 * number for number in range(1, 17)]
    curve = {"task": "dmc_cartpole_swingup", "method": "dreamerv3", "seed": 0, "xs": xs, "ys": [100.0] * len(xs)}
    (tmp_path / "published.json.gz").write_bytes(gzip.compress(json.dumps([curve]).encode()))
    yield tmp_path


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(BENCHMARKS / "proof.py"), "--list", "list.yaml", "--results", "results", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def outcome(ended: subprocess.Popen[str]) -> str:
    try:
        said, _ = ended.communicate(timeout=120)
    finally:
        ended.terminate()
    assert ended.returncode == 0, said
    return said


def test_the_proof_in_small(folder: Path) -> None:
    train = ("run", "--out", "made", "--back", "back", "--commit", "0" * 40)
    first = start(folder, *train)
    episodes = folder / "made" / NAMES[0] / "run" / "episodes.jsonl"
    deadline = time.monotonic() + 60
    while first.poll() is None and time.monotonic() < deadline and not (episodes.exists() and episodes.stat().st_size):
        time.sleep(0.02)
    first.terminate()
    said = outcome(first)
    assert f"{NAMES[0]}: interrupted" in said
    said = outcome(start(folder, *train))
    assert f"{NAMES[0]}: continued" in said
    assert f"{NAMES[1]}: begun" in said
    said = outcome(start(folder, "collect", "back", "--reference", "published.json.gz"))
    assert "2 of 2 runs have a result, 0 refused" in said
    results = [json.loads(line) for line in (folder / "results" / "results.jsonl").read_text().splitlines()]
    assert [result["name"] for result in results] == NAMES
    for result in results:
        raw = json.loads(gzip.decompress((folder / "results" / "records" / f"{result['name']}.json.gz").read_bytes()))
        steps, returns = raw["episodes"]["step"], raw["episodes"]["return"]
        assert max(steps) <= result["steps"] == 8000
        assert result["score"] == np.mean([found for step, found in zip(steps, returns, strict=True) if step > 7200])
    table = (folder / "results" / "table.md").read_text()
    assert "| dmc:cartpole_swingup | tiny | 16,000 |" in table
    assert "| 100 (100 to 100) | **below** |" in table
    assert (folder / "results" / "curves.png").stat().st_size > 1000
    assert outcome(start(folder, "left")) == ""
