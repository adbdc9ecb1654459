"""Roles on other machines: without a folder in common, started in code, and lost on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import counting
from addresses import expect_ipv6
from cli_fleet import CliFleet, copy_invitation, environment
from dreamfleet.checkpoint.snapshot import Snapshots
from fleet_probe import events_of

# Waits for a fleet, then steps its environments as a user's own program on another machine would.
ENVS_ELSEWHERE = """
import json, sys
from pathlib import Path
import counting
from dreamfleet import parallel
from fleet_probe import wait_until

run = Path(sys.argv[1])
wait_until((run / "fleet.json").exists, 20, "a fleet")
args = json.loads((run / "fleet.json").read_text())["args"]
parallel.parallel_envs(counting.make_env_train, counting.make_env_eval, {**args, "logdir": str(run)})
"""


def run_with_replay_elsewhere(run: Path, elsewhere: Path, steps: int) -> None:
    (run / "fleet.json").unlink(missing_ok=True)  # of an earlier run, with other addresses
    with CliFleet(run, "env=user_envs:Tiny", "run.envs=2", "run.remote_replay=true", f"run.steps={steps}") as fleet:
        fleet.wait((run / "fleet.json").exists, "a fleet file")
        with fleet.joined("replay", copy_invitation(run, elsewhere, "replay")):
            code, printed = fleet.finish()
    assert code == 0, printed


def test_a_replay_without_a_folder_in_common_saves_and_goes_on_from_its_own(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run_with_replay_elsewhere(run, elsewhere, steps=600)
    first, its_own = Snapshots(run).manifest(), Snapshots(elsewhere).manifest()
    assert (first["step"], first["updates"]) == (its_own["step"], its_own["updates"])
    run_with_replay_elsewhere(run, elsewhere, steps=900)
    second, its_own = Snapshots(run).manifest(), Snapshots(elsewhere).manifest()
    assert 900 <= second["step"] == its_own["step"] < 950  # it has counted on from the first run's steps
    assert second["updates"] > first["updates"]


def test_a_run_that_loses_its_remote_replay_goes_on_with_the_next_one(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "env=user_envs:Tiny", "run.envs=2", "run.remote_replay=true") as fleet:
        fleet.wait((tmp_path / "fleet.json").exists, "a fleet file")
        with fleet.joined("replay"):
            fleet.wait(lambda: fleet.updates() > 0, "the first update", 60)

        def misses_replay() -> bool:
            """An agent that hears of the end begins anew; one that only loses its connection waits for the next one."""
            waits = fleet.role("agent").get("learner", {}).get("waiting", {})
            return bool(events_of(tmp_path, "restart")) or waits.get("replay to sample", 0) > 5

        fleet.wait(misses_replay, "an agent that begins anew, or waits")
        with fleet.joined("replay"):
            fleet.wait(lambda: fleet.updates() > 0, "the first update of the next one", 60)
            assert fleet.stop(timeout_s=60)[0] == 130


def test_a_worker_joins_over_ipv6(tmp_path: Path) -> None:
    expect_ipv6()
    listens = "run.actor_addr=tcp://[::1]:{auto}"
    with CliFleet(tmp_path, "env=user_envs:Tiny", "run.envs=2", "run.remote_envs=true", listens) as fleet:
        fleet.wait((tmp_path / "fleet.json").exists, "a fleet file")
        with fleet.joined("env"):
            fleet.wait_training()
            assert fleet.stop()[0] == 130


def test_environments_started_in_code_elsewhere_serve_a_fleet_until_it_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENVS_ELSEWHERE, str(tmp_path)]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as envs:
        try:
            agent = counting.run_fleet(tmp_path, remote_envs=True)
            _, printed = envs.communicate(timeout=20)
        finally:
            envs.kill()
    assert envs.returncode == 0, printed
    counting.expect_complete(agent)
    assert agent["eval_steps"] > 0
    (status,) = tmp_path.glob("remote/*/status.json")
    assert json.loads(status.read_text())["state"] == "done"
