"""Benchmarks in small: they run to their end and find something, though their figures mean nothing here.

Without `chaos.py`, `learning.py` and `readings.py`, which take minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import published
import same_update
import transport
from dreamfleet.config.load import parse_overrides
from dreamfleet.core.errors import BadInput
from dreamfleet.core.hyperparameters import sized

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
    with pytest.raises(BadInput, match=r"has no dreamerv3/agent\.py: name a folder of danijar/dreamerv3"):
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


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("agent.policy.unimix=0.01", r"not asked for agent\.policy\.unimix here"),
        ("replay.fracs.priority=0.5", r"not asked for replay\.fracs here"),
        ("run.goal=1", r"not asked for run\.goal here"),
        ("run.train_ratio=0", r"set run\.train_ratio above 0"),
        ("jax.platform=auto", r"set jax\.platform, or add the preset cpu"),
    ],
)
def test_what_the_authors_code_would_do_otherwise_is_refused(word: str, message: str) -> None:
    published.check(parse_overrides(["cpu"]))
    with pytest.raises(BadInput, match=message):
        published.check(parse_overrides(["cpu", word]))


def test_differences_of_updates_are_told_by_where_they_are_largest() -> None:
    same = {"a": np.ones(3), "b": np.full((2, 2), 2.0)}
    assert same_update.largest(same, same) == (0.0, "b")
    assert same_update.largest(same, {**same, "b": same["b"] * 1.5}) == (0.5, "b")
    assert same_update.largest(same, {**same, "a": np.array([1, 1, np.nan])}) == (np.inf, "a")
    with pytest.raises(SystemExit, match=r"only one of the codes has \['b'\]"):
        same_update.largest(same, {"a": same["a"]})


def test_updates_agree_only_if_everything_does() -> None:
    found = {what: (limit, "") for what, limit in same_update.LIMITS.items()}
    assert same_update.agree(found)
    for what, limit in same_update.LIMITS.items():
        assert not same_update.agree({**found, what: (limit * 1.01, "")})


def test_tensors_of_the_authors_code_have_a_place_in_ours() -> None:
    places = {
        "dyn/dynin2norm/scale": "dyn/core/from_action/norm/scale",
        "dyn/obs0/kernel": "dyn/post/0/linear/kernel",
        "dec/conv2norm/scale": "dec/images/norms/1/scale",
        "dec/imgout/bias": "dec/images/convs/3/bias",
        "pol/mlp/linear1/bias": "pol/mlp/layers/1/linear/bias",
        "pol/head/action/stddev/kernel": "pol/heads/action/std/kernel",
        "con/head/logit/bias": "con/out/bias",
    }
    assert {name: same_update.our_name(name) for name in places} == places
