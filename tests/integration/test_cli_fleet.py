"""The fleet as a user starts it: runs, ends, goes on, and takes in roles from elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
from pathlib import Path

import psutil
import pytest

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.launch.fleet_signature import sign
from dreamfleet.transport.security import create_keys
from support.cli_fleet import CliFleet, copy_invitation, dreamfleet, expect_nothing_left
from support.fleet_probe import events_of, wait_until

FEW, MANY = 10, 50  # repetitions


def test_a_run_ends_at_its_steps_and_leaves_the_documented_folder(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "run.envs=4", "run.steps=2000") as fleet:
        fleet.wait(lambda: fleet.status()["state"] == "running", "a running fleet")
        pids, sockets = [process.pid for process in fleet.processes()], fleet.sockets()
        code, printed = fleet.finish()
    assert code == 0, printed
    assert "done: step 20" in printed.splitlines()[-1]
    expect_nothing_left(pids, sockets)
    for name in ("config.yaml", "metrics.jsonl", "episodes.jsonl", "events.jsonl", "status.json", "fleet.json"):
        assert (tmp_path / name).is_file(), name
    assert {path.stem for path in (tmp_path / "logs").iterdir()} >= {"agent", "replay", "logger", "env-0"}
    for key in (tmp_path / "keys").iterdir():
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["state"] == "done"
    assert 2000 <= fleet.step() < 2000 + 2  # one batch of two at most
    # A random policy hits one of five targets a step, in episodes of 100 steps.
    episodes = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert episodes
    assert all(episode["length"] == 100 and 0 < episode["return"] < 60 for episode in episodes)
    assert set(episodes[0]) >= {"step", "time", "env", "mode", "return", "length"}


def test_the_same_command_continues_a_run(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "run.envs=2", "run.steps=1000") as fleet:
        assert fleet.finish()[0] == 0
    first = Snapshots(tmp_path).manifest()
    assert first["step"] >= 1000
    result = dreamfleet("train", "run.steps=1500", "--run-dir", str(tmp_path))
    assert result.returncode == 0, result.stderr
    second = Snapshots(tmp_path).manifest()
    assert 1500 <= second["step"] < 1520
    assert second["updates"] > first["updates"]
    assert events_of(tmp_path, "restore")[0]["detail"]["updates"] == first["updates"]
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert steps[-1] >= 1500


def test_the_same_command_on_a_finished_run_starts_nothing_and_changes_nothing(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "env=support.user_envs:Tiny", "run.envs=2", "run.steps=300") as fleet:
        assert fleet.finish()[0] == 0
    step = Snapshots(tmp_path).manifest()["step"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    result = dreamfleet("train", "run.steps=300", "--run-dir", str(tmp_path))
    assert result.returncode == 0
    assert f"the run in {tmp_path} is finished: it is at step {step}, and run.steps=300: to continue" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_run_with_a_slow_environment_ends_well(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "env=support.slow_parts:SlowEnv", "run.envs=4", "run.steps=200") as fleet:
        code, printed = fleet.finish()
    assert code == 0, printed
    assert Snapshots(tmp_path).manifest()["step"] > 0


def test_a_last_save_that_takes_seconds_is_complete(tmp_path: Path) -> None:
    with CliFleet(
        tmp_path, "env=support.user_envs:Tiny", "agent=support.slow_parts:SlowSave", "run.envs=2", "run.steps=500"
    ) as fleet:
        code, printed = fleet.finish()
    assert code == 0, printed
    snapshot = Snapshots(tmp_path).latest()
    assert snapshot is not None
    assert {path.name for path in snapshot.iterdir()} >= {"manifest.json", "agent.safetensors"}
    assert not events_of(tmp_path, "save_failed")


def test_a_run_folder_is_used_by_one_run_at_a_time_and_keeps_what_its_snapshot_needs(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "run.envs=1") as fleet:
        fleet.wait_training()
        second = dreamfleet("train", "run.steps=10", "--run-dir", str(tmp_path))
        assert second.returncode == 2
        assert f"is in use by another run (process {fleet.process.pid})" in second.stderr
        assert fleet.stop()[0] == 130
    before = (tmp_path / "config.yaml").read_text()
    assert "steps: 10\n" not in before
    other = dreamfleet("train", "env=support.user_envs:Tiny", "--run-dir", str(tmp_path))
    assert other.returncode == 2
    assert "dreamfleet: env.name cannot change" in other.stderr
    assert (tmp_path / "config.yaml").read_text() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_cleanly_with_a_snapshot(tmp_path: Path, number: signal.Signals) -> None:
    with CliFleet(tmp_path, "run.envs=2") as fleet:
        fleet.wait_training()
        pids, sockets = [process.pid for process in fleet.processes()], fleet.sockets()
        code, _ = fleet.stop(number)
    assert code == 130
    expect_nothing_left(pids, sockets)
    assert (tmp_path / "snapshots" / "latest").is_file()


def test_a_killed_role_that_may_not_come_back_ends_the_run_within_ten_seconds_and_is_named(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "run.envs=2", "run.max_restarts=0") as fleet:
        fleet.wait_training()
        pids, sockets = [process.pid for process in fleet.processes()], fleet.sockets()
        os.kill(fleet.status()["roles"]["replay"]["pid"], signal.SIGKILL)
        code, printed = fleet.finish(timeout_s=10)
    assert code == 1
    assert printed.splitlines()[-1].startswith("dreamfleet: replay died: signal 9 (SIGKILL)")
    expect_nothing_left(pids, sockets)


@pytest.mark.timeout(400)  # many fleets, one after the other
@pytest.mark.parametrize("repetitions", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_repeated_starts_and_stops_leave_nothing_behind(tmp_path: Path, repetitions: int) -> None:
    shared_memory = set(Path("/dev/shm").iterdir())
    for repetition in range(repetitions):
        run = tmp_path / str(repetition)
        with CliFleet(run, "env=support.user_envs:Tiny", "run.envs=1", "run.steps=50", "run.save_every=0") as fleet:
            fleet.wait(lambda fleet=fleet: fleet.status()["state"] != "none", "a status")
            pids = [process.pid for process in fleet.processes()]
            code, printed = fleet.finish()
        assert code == 0, printed
        expect_nothing_left(pids, fleet.sockets())
    assert set(Path("/dev/shm").iterdir()) <= shared_memory


def test_an_idle_fleet_uses_less_than_a_twentieth_of_a_core(tmp_path: Path) -> None:
    with CliFleet(
        tmp_path, "agent=support.user_envs:NeverTrains", "run.envs=4", "run.envs_per_worker=2", "run.train_ratio=8"
    ) as fleet:
        # A worker that came late waits for the actor, which waits for replay, to take its environments in.
        workers = ("env-0", "env-1")
        fleet.wait(lambda: all(fleet.role(name).get("waiting") for name in workers), "environments that wait", 60)
        fleet.wait(lambda: fleet.role("agent").get("actor", {}).get("waiting"), "an actor that waits")
        step = fleet.step()
        processes = fleet.processes()
        before = sum(sum(process.cpu_times()[:2]) for process in processes)
        start = fleet.status()["time"]
        fleet.wait(lambda: fleet.status()["time"] >= start + 5, "five seconds of idling")
        elapsed = fleet.status()["time"] - start
        used = sum(sum(process.cpu_times()[:2]) for process in processes) - before
        assert fleet.step() == step, "the fleet was not idle"
        assert used / elapsed < 0.05
        assert "replay to accept steps" in fleet.role("agent")["actor"]["waiting"]
        assert "more windows to be sampled" in fleet.role("replay")["limiter"]["waits_for"]


def test_an_env_role_joins_over_tcp_contributes_and_leaves(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "run.envs=2", "run.train_ratio=1") as fleet:
        fleet.wait_training()
        with fleet.joined("env") as role:
            fleet.wait(lambda: fleet.role("agent")["actor"]["envs"] == 3, "a third environment")
            fleet.wait(lambda: 2 in {episode["env"] for episode in episodes(tmp_path)}, "an episode of it")
            workers = psutil.Process(role.pid).children()
            peers = {link.raddr.ip for worker in workers for link in worker.net_connections("tcp") if link.raddr}
            assert peers == {"127.0.0.1"}
            role.send_signal(signal.SIGINT)
            assert role.wait(20) == 130
        fleet.wait(lambda: fleet.role("agent")["actor"]["envs"] == 2, "two environments again")
        step = fleet.step()
        fleet.wait(lambda: fleet.step() > step, "further steps")
        assert fleet.status()["state"] == "running"


def test_a_worker_elsewhere_needs_two_files_and_ends_by_itself_when_the_fleet_ends(tmp_path: Path) -> None:
    with CliFleet(tmp_path / "run", "run.envs=2") as fleet:
        fleet.wait_training()
        invitation = copy_invitation(tmp_path / "run", tmp_path / "elsewhere", "worker")
        with fleet.joined("env", invitation, "--env", "dummy") as role:
            fleet.wait(lambda: fleet.role("agent")["actor"]["envs"] == 3, "a third environment")
            assert fleet.stop()[0] == 130
            assert role.wait(20) == 0


def test_a_replay_role_serves_a_fleet_that_has_none(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "run.envs=2", "run.remote_replay=true", "run.steps=1000") as fleet:
        fleet.wait(lambda: (tmp_path / "fleet.json").exists(), "a fleet file")
        with fleet.joined("replay") as role:
            assert fleet.finish()[0] == 0
            assert fleet.updates() > 0
            assert role.wait(20) == 0  # it ends with the fleet


def test_a_role_with_another_key_gets_nowhere(tmp_path: Path) -> None:
    with CliFleet(tmp_path / "run", "run.envs=2") as fleet:
        fleet.wait_training()
        thief = tmp_path / "thief"
        thief.mkdir()
        shutil.copy(tmp_path / "run" / "fleet.json", thief)
        assert "cannot read key" in dreamfleet("role", "env", "--fleet", f"{thief}/fleet.json").stderr
        create_keys(thief / "keys")
        fleet_file = json.loads((thief / "fleet.json").read_text())
        del fleet_file["signatures"]
        (thief / "fleet.json").write_text(json.dumps(sign(fleet_file, thief / "keys")))
        with fleet.joined("env", thief / "fleet.json"):
            wait_until(lambda: len(list(thief.glob("remote/*/status.json"))) == 1, 10, "the role's status")
            step = fleet.step()
            fleet.wait(lambda: fleet.step() > step + 2000, "further steps of the fleet")
            assert fleet.role("agent")["actor"]["envs"] == 2
            assert json.loads(next(thief.glob("remote/*/status.json")).read_text())["state"] == "starting"


def episodes(run: Path) -> list[dict[str, object]]:
    *lines, _ = (run / "episodes.jsonl").read_text().split("\n")
    return [json.loads(line) for line in lines]
