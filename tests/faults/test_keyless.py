"""Connections that never prove a key: in small, and with few descriptors. `benchmarks/keyless.py` opens 10,000."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "keyless.py"
FILES, CONNECTIONS = 300, 1200
OWN_FILES = 100  # of the agent, at most


@pytest.mark.timeout(300)
def test_more_connections_without_a_key_than_the_agent_has_descriptors_end_nothing() -> None:
    few = ["--servers", "actor", "--connections", str(CONNECTIONS), "--files", str(FILES)]
    short = ["--rounds", "1", "--seconds", "1", "--join-within", "0"]
    ended = subprocess.run(
        [sys.executable, BENCHMARK, "--json", *few, *short], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    (flood,) = found["floods"]
    assert found["opened"] >= min(flood["open"]) >= FILES - OWN_FILES
    assert max(flood["files_of_agent"]) >= FILES - 5
    assert found["restarts"] == 0
    assert found["env_steps_per_s"]["during"] > 0
    assert found["env_steps_per_s"]["after"] > 0
    assert found["worker_joined_after_s"] is not None
    assert (found["exit_code"], found["snapshot"]) == (130, True)
