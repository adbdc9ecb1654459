"""Benchmarks in small: they run to their end and find something, though their figures mean nothing here.

Without `chaos.py` and `learning.py`, which take minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import published
import transport
from dreamfleet.core.errors import BadInput
from dreamfleet.core.hyperparameters import PolicyOptions, sized

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = ["env=dummy", "agent=random", "run.train_ratio=64", "batch_size=2", "batch_length=8", "report_length=8"]


def run(*words: str) -> Any:
    command = [sys.executable, *words]
    ended = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def measure(program: str, *arguments: str) -> Any:
    return run(program, "--json", *arguments)


def test_replay() -> None:
    found = measure("replay.py", "--capacity", "4096")
    assert all(found["insert_us_per_step"][rows]["steady"] > 0 for rows in ("1", "16", "64"))
    assert found["sample"]["gb_per_s"] > 0
    assert found["update"]["gb_per_s"] > 0


def test_environments() -> None:
    found = measure("envs.py", "--seconds", "0.3", "--rounds", "1", "--suites", "dummy")
    assert found["overhead"]["worker_cpu_us_per_step"] > found["overhead"]["bare_cpu_us_per_step"] > 0


def test_snapshots() -> None:
    found = measure("snapshots.py", "--size", "tiny", "--steps", "2048")
    assert min(found["complete_after_s"]) > 0


def test_the_system_and_how_it_scales() -> None:
    (row,) = measure("scaling.py", "--sweep", "envs", "--values", "1", "--seconds", "2", *SMALL)["rows"]
    assert row["env_steps_per_s"] > 0
    assert row["updates_per_s"] > 0
    assert all(min(row["memory_gb"][kind]) > 0 for kind in ("agent", "replay", "env", "logger"))


@pytest.mark.slow
def test_a_fleet_with_a_random_agent() -> None:
    found = measure("fleet.py", "--seconds", "3", "--envs", "4", "--train-ratio", "64")
    assert found["env_steps_per_s"] > 0


@pytest.mark.slow
def test_the_learner() -> None:
    found = measure("learner.py", "--size", "tiny", "--batch-size", "2", "--batch-length", "8", "--seconds", "0.2")
    assert found["sizes"][0]["train_ms"] > 0


def test_transport() -> None:
    """Our side alone: what it compares with is not installed for tests."""
    found = run("-c", "import json, transport; print(json.dumps(transport.measure('dreamfleet', 2, 1, 0.3)))")
    assert found["steps_per_s"] > 0


def test_transport_names_what_it_lacks(monkeypatch) -> None:
    monkeypatch.setattr(transport, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["transport.py"])
    with pytest.raises(SystemExit, match="portal is not installed, which this compares with: pip install"):
        transport.main()


def test_the_authors_code_is_asked_for_where_it_is_not(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no dreamerv3/agent\.py: name a folder of danijar/dreamerv3"):
        published.import_code(tmp_path)


def test_the_authors_code_is_given_our_options() -> None:
    found = published.their_options(sized("size1m"))
    assert found["dyn"]["rssm"]["deter"] == 512
    assert found["enc"]["simple"]["depth"] == found["dec"]["simple"]["depth"] == 4
    assert found["value"] == {
        "layers": 3, "units": 64, "outscale": 0.0, "bins": 255, "output": "symexp_twohot",
        "act": "silu", "norm": "rms", "winit": "trunc_normal_in",
    }  # fmt: skip
    assert found["imag_loss"] == {"slowtar": False, "lam": 0.95, "actent": 3e-4, "slowreg": 1.0}


def test_what_the_authors_code_cannot_do_is_refused() -> None:
    mixed = replace(sized("size1m"), policy=PolicyOptions(unimix=0.01))
    with pytest.raises(BadInput, match=r"leave agent\.policy\.unimix at 0"):
        published.their_options(mixed)
