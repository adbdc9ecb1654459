"""Roles on other machines: without a folder in common, started in code, and lost on the way."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.transport.address import resolve_auto
from support import counting
from support.addresses import expect_ipv6
from support.cli_fleet import CliFleet, copy_invitation, environment
from support.fleet_probe import events_of, wait_until
from support.mortal_fleet import MortalFleet

# Waits for a fleet, then steps its environments as a user's own program on another machine would.
ENVS_ELSEWHERE = """
import json, sys
from pathlib import Path
from support import counting
from dreamfleet import parallel
from support.fleet_probe import wait_until

run = Path(sys.argv[1])
wait_until((run / "fleet.json").exists, 20, "a fleet")
args = json.loads((run / "fleet.json").read_text())["args"]
parallel.parallel_envs(counting.make_env_train, counting.make_env_eval, {**args, "logdir": str(run)})
"""


def run_with_replay_elsewhere(run: Path, elsewhere: Path, steps: int) -> None:
    (run / "fleet.json").unlink(missing_ok=True)  # of an earlier run, with other addresses
    with CliFleet(
        run, "env=support.user_envs:Tiny", "run.envs=2", "run.remote_replay=true", f"run.steps={steps}"
    ) as fleet:
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
    with CliFleet(tmp_path, "env=support.user_envs:Tiny", "run.envs=2", "run.remote_replay=true") as fleet:
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
    with CliFleet(tmp_path, "env=support.user_envs:Tiny", "run.envs=2", "run.remote_envs=true", listens) as fleet:
        fleet.wait((tmp_path / "fleet.json").exists, "a fleet file")
        with fleet.joined("env"):
            fleet.wait_training()
            assert fleet.stop()[0] == 130


def test_a_replay_is_reached_by_the_name_of_its_machine(tmp_path: Path) -> None:
    """Which says nothing about interfaces, so that replay listens on all of them and not on loopback alone."""
    address = resolve_auto(f"tcp://{socket.gethostname()}:{{auto}}", tmp_path, "replay")
    replay = ["run.remote_replay=true", f"run.replay_addr={address}"]
    another = "127.0.0.2", int(address.rpartition(":")[2])  # of Linux: every number from 127.0.0.1 on is this machine
    with CliFleet(tmp_path, "env=support.user_envs:Tiny", "run.envs=2", "run.steps=2000", *replay) as fleet:
        fleet.wait((tmp_path / "fleet.json").exists, "a fleet file")
        with fleet.joined("replay") as role:
            fleet.wait(lambda: accepts(another), "a replay that listens there")
            assert fleet.finish()[0] == 0
            assert role.wait(20) == 0


def accepts(place: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(place) == 0


def test_a_replay_that_waits_for_a_finished_run_ends(tmp_path: Path) -> None:
    overrides = ["env=support.user_envs:Tiny", "run.envs=2", "run.remote_replay=true", "run.steps=100"]
    with CliFleet(tmp_path, *overrides) as fleet:
        fleet.wait((tmp_path / "fleet.json").exists, "a fleet file")
        with fleet.joined("replay"):
            assert fleet.finish()[0] == 0
    with fleet.joined("replay") as role:
        (folder,) = wait_for_folders(tmp_path, 2)
        wait_until(lambda: bool(events_of(folder, "ready")), 20, "a replay that listens")
        with CliFleet(tmp_path, *overrides) as again:
            code, printed = again.finish()
        assert (code, "is finished" in printed) == (0, True)
        assert role.wait(20) == 0


def wait_for_folders(run: Path, count: int) -> list[Path]:
    """Those of joined roles that are not done, once there are `count` in all."""
    wait_until(lambda: len(list(run.glob("remote/*"))) == count, 20, "its folder")
    return [folder for folder in run.glob("remote/*") if not events_of(folder, "done")]


def test_a_worker_from_elsewhere_that_dies_is_started_again_and_all_sides_say_so(tmp_path: Path) -> None:
    run, screen = tmp_path / "run", tmp_path / "screen"
    only_the_actor = ["run.replay_addr=ipc://{auto}", "run.logger_addr=ipc://{auto}"]
    with MortalFleet(run, *only_the_actor) as fleet:
        fleet.wait_training()
        with fleet.joined("env", copy_invitation(run, tmp_path / "elsewhere", "worker"), screen=screen) as role:
            fleet.wait(lambda: len(events_of(run, "joined")) == 1, "a worker")
            (child,) = psutil.Process(role.pid).children()
            child.kill()
            fleet.wait(lambda: len(events_of(run, "joined")) == 2, "the next one")
            fleet.wait(lambda: len(events_of(run, "worker_lost")) == 1, "the loss of the first one")
            fleet.kill("agent")
            wait_until(lambda: "rejoined the run" in screen.read_text(), 20, "a worker that has joined again")
            code, printed = fleet.stop()
            assert (code, role.wait(20)) == (130, 0)
    first, second, *_ = (event["detail"] for event in events_of(run, "joined"))
    (lost,) = (event["detail"] for event in events_of(run, "worker_lost"))
    assert first["host"] == second["host"] == lost["host"] == socket.gethostname()
    assert first["worker"] == lost["worker"] != second["worker"]
    assert first["environments"] == lost["environments"] == 1
    assert f"lost a worker on {lost['host']}: the run continues without its environment" in printed
    said = [line.removeprefix("dreamfleet: ") for line in screen.read_text().splitlines()]
    said = [line for line in said if not line.startswith("the fleet file names")]
    address = json.loads((run / "fleet.json").read_text())["addresses"]["actor"][1]
    begun = f"joined the run at {address}"
    expected = [
        f"{begun} with",
        "env died: signal 9",
        f"{begun} with",
        "lost its connection to the run",
        f"re{begun} with",
    ]
    assert [line[: len(start)] for line, start in zip(said, expected, strict=False)] == expected
    assert said[len(expected) :] == ["the run has ended"]


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
