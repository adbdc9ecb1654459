"""Snapshots of a real run: on request, listed, and continued from after everything was killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import psutil

from dreamfleet.checkpoint.arrays import load_arrays, save_arrays
from dreamfleet.checkpoint.schema import checksum_of
from dreamfleet.checkpoint.snapshot import Retention, Snapshots
from support.cli_fleet import CliFleet, dreamfleet
from support.fleet_probe import events_of, is_running, wait_until


def kill(fleet: CliFleet) -> None:
    processes = fleet.processes()
    for process in processes:
        process.kill()
    fleet.process.communicate()
    wait_until(lambda: not any(is_running(process.pid) for process in processes), 20, "the end of all roles")


def steps_in(path: Path) -> list[int]:
    *lines, _ = path.read_text().split("\n")  # the last one may still be on its way
    return [json.loads(line)["step"] for line in lines]


def expect_one_step(run: Path) -> int:
    """All parts of the newest snapshot are of one step, and its replay holds exactly its steps."""
    folder = Snapshots(run).latest()
    assert folder is not None
    step = int(Snapshots(run).manifest()["step"])
    assert int(load_arrays(folder / "limiter.safetensors")["size"]) == step
    chunks = load_arrays(folder / "replay_train.safetensors")["chunks"]
    assert int(chunks[:, 2].sum()) == step  # nothing is evicted in this run
    return step


def test_a_snapshot_on_request_is_what_a_killed_run_continues_from(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "env=support.user_envs:Tiny", "run.envs=2", "run.save_every=0") as fleet:
        fleet.wait_training()
        taken = dreamfleet("snapshot", str(tmp_path))
        assert taken.returncode == 0, taken.stderr
        assert Path(taken.stdout.strip()) == Snapshots(tmp_path).latest()
        step = expect_one_step(tmp_path)
        fleet.wait(lambda: max(steps_in(tmp_path / "metrics.jsonl"), default=0) > step + 10, "metrics of later steps")
        kill(fleet)
    listed = json.loads(dreamfleet("snapshot", str(tmp_path), "--list", "--json").stdout)["snapshots"]
    assert [(row["step"], row["kept"], row["damage"]) for row in listed] == [(step, ["newest", "best"], None)]
    refused = dreamfleet("snapshot", str(tmp_path), timeout_s=60)
    assert refused.returncode == 2, refused.stderr  # its status is of a run that was killed
    result = dreamfleet("train", f"run.steps={step + 300}", "--run-dir", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert events_of(tmp_path, "restore")[0]["detail"]["snapshot"] == listed[0]["snapshot"]
    assert expect_one_step(tmp_path) >= step + 300
    for name in ("metrics", "episodes"):
        found = steps_in(tmp_path / f"{name}.jsonl")
        assert found == sorted(found)
        assert min(steps_in(tmp_path / f"{name}.lost.jsonl"), default=step + 1) > step
        assert found[-1] <= step + 302
    assert not psutil.Process().children(recursive=True)


def test_another_runs_agent_is_where_a_run_begins_and_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with CliFleet(first, "env=support.user_envs:Tiny", "run.envs=2", "run.steps=300") as fleet:
        assert fleet.finish()[0] == 0
    updates = load_arrays(Snapshots(first).latest() / "agent.safetensors")["updates"]  # type: ignore[operator]
    base = (
        "train",
        "agent=random",
        "env=support.user_envs:Tiny",
        "run.envs=2",
        "run.steps=200",
        "batch_size=2",
        "batch_length=8",
    )
    small = ("report_length=4", "replay.size=1e5", "run.eval_envs=0", "--run-dir", str(second))
    for given, words in (
        (("run.from_checkpoint=/nowhere",), "there is no such folder"),
        (("run.from_checkpoint_regex=(",), "is not a valid regular expression"),
    ):
        refused = dreamfleet(*base, *given, *small)
        assert refused.returncode == 2, refused.stderr
        assert words in refused.stderr
    result = dreamfleet(*base, f"run.from_checkpoint={first}", *small)
    assert result.returncode == 0, result.stderr
    assert "1 arrays loaded" in result.stderr
    (event,) = events_of(second, "from_checkpoint")
    assert event["detail"]["taken"] == ["updates"]
    assert load_arrays(Snapshots(second).latest() / "agent.safetensors")["updates"] > updates  # type: ignore[operator]
    late = dreamfleet("train", f"run.from_checkpoint={second}", "--run-dir", str(first))
    assert late.returncode == 2
    assert "only for new runs" in late.stderr


def test_a_flipped_byte_is_said_and_a_newer_format_refused_before_anything_is_written(tmp_path: Path) -> None:
    with CliFleet(tmp_path, "env=support.user_envs:Tiny", "run.envs=2", "run.steps=300", "run.save_every=-1") as fleet:
        assert fleet.finish()[0] == 0
    *_, older, newest = Snapshots(tmp_path).all()
    data = bytearray((newest.folder / "limiter.safetensors").read_bytes())
    data[-1] ^= 1
    (newest.folder / "limiter.safetensors").write_bytes(data)
    result = dreamfleet("train", "run.steps=400", "--run-dir", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("is damaged and not used: limiter.safetensors does not match its checksum") == 1
    (event,) = events_of(tmp_path, "damaged")
    assert event["detail"]["snapshot"] == newest.folder.name
    assert events_of(tmp_path, "restore")[-1]["detail"]["snapshot"] == older.folder.name
    latest = Snapshots(tmp_path).latest()
    assert latest is not None
    manifest = json.loads((latest / "manifest.json").read_text())
    later = {**manifest, "format": 4}
    (latest / "manifest.json").write_text(json.dumps({**later, "checksum": checksum_of(later)}))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    refused = dreamfleet("train", "--run-dir", str(tmp_path))
    assert refused.returncode == 2
    assert "has format 4, this version of dreamfleet reads up to 3" in refused.stderr
    for path, changed in before.items():
        assert path.stat().st_mtime_ns == changed or path.name == "events.jsonl", path
    assert np.isfinite(manifest["time"])


def test_a_run_that_diverges_keeps_its_last_finite_snapshot_and_continues_from_it(tmp_path: Path) -> None:
    with CliFleet(
        tmp_path,
        "agent=support.surviving:Diverges",
        "env=support.user_envs:Tiny",
        "run.envs=2",
        "run.steps=3000",
        "run.save_every=-1",
    ) as run:
        code, printed = run.finish()
    assert code == 1
    assert "the agent's array 'weights' is not finite after update" in printed
    snapshots = Snapshots(tmp_path, Retention(keep=9))
    older, manifest = snapshots.latest(), snapshots.manifest()
    assert older is not None
    arrays = load_arrays(older / "agent.safetensors")
    assert np.isfinite(arrays["weights"]).all()
    assert 0 < arrays["updates"] < 10
    # As written before there was a check:
    newest = shutil.copytree(older, snapshots.pending(manifest["step"] + 1), dirs_exist_ok=True)
    save_arrays(newest / "agent.safetensors", {**arrays, "weights": np.full(3, np.inf, np.float32)})
    newest = snapshots.commit(manifest["step"] + 1, {"updates": manifest["updates"] + 1})
    result = dreamfleet("train", f"run.steps={manifest['step'] + 200}", "--run-dir", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("is damaged and not used: agent.safetensors is not finite in weights") == 1
    (event,) = events_of(tmp_path, "damaged")
    assert event["detail"]["snapshot"] == newest.name
    assert events_of(tmp_path, "restore")[-1]["detail"]["snapshot"] == older.name
    assert {found.damage for found in Snapshots(tmp_path).all()} == {None}
