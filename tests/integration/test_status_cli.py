"""What `dreamfleet status` says beside a run, from its folder alone: while it runs, and when it was killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.cli_fleet import CliFleet, dreamfleet, environment


def test_status_follows_a_run_and_notices_its_death(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "run.envs=2", "run.envs_per_worker=1") as fleet:
        fleet.wait_training()
        found = json.loads(dreamfleet("status", str(tmp_path), "--json").stdout)
        assert (found["state"], found["task"], found["folder"]) == ("running", "dummy", str(tmp_path))
        assert found["step"] > 0
        assert found["updates"] > 0
        assert found["limiter"]
        assert [role["name"] for role in found["roles"]] == ["envs x2", "actor", "learner", "logger", "replay"]
        command = [sys.executable, "-m", "dreamfleet", "status", str(tmp_path), "--watch"]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            assert watching.stdout.readline().startswith("running: step ")
            fleet.process.kill()
            fleet.process.wait(10)
            status = json.loads((tmp_path / "status.json").read_text())
            (tmp_path / "later.json").write_text(json.dumps({**status, "time": status["time"] - 60}))  # by a minute
            (tmp_path / "later.json").replace(tmp_path / "status.json")
            assert watching.communicate(timeout=20)[0].startswith("died: step ")
        assert watching.returncode == 0
    found = json.loads(dreamfleet("status", str(tmp_path), "--json").stdout)
    assert found["state"] == "died"
    assert "resumes from the last snapshot" in found["reason"]
    curve = dreamfleet("plot", str(tmp_path), "--out", str(tmp_path / "curve.png"))
    assert curve.returncode == 0, curve.stderr
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_quiet_prints_nothing_but_the_last_line(tmp_path: Path) -> None:
    small = ["agent=random", "env=dummy", "replay.size=1e5", "batch_size=2", "batch_length=8", "report_length=4"]
    run = [
        "run.envs=1",
        "run.eval_envs=0",
        "run.steps=200",
        "run.stop_timeout_s=60",
        "--run-dir",
        str(tmp_path),
        "--quiet",
    ]
    result = dreamfleet("train", *small, *run)
    assert result.returncode == 0
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("done: step 200/200")


def test_what_is_no_run_is_one_line_and_code_2(tmp_path: Path) -> None:
    for words in (["status", str(tmp_path)], ["plot", str(tmp_path), "--out", str(tmp_path / "x.png")]):
        result = dreamfleet(*words)
        assert result.returncode == 2
        assert result.stderr.startswith(f"dreamfleet: {tmp_path} is not a run folder")
        assert len(result.stderr.splitlines()) == 1
