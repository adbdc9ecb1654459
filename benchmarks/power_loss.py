"""Cuts the power at random moments of real snapshots, and looks whether the run folder still holds a whole one.

    python benchmarks/power_loss.py [--json] [--cuts 1000] [--snapshots 40] [--seed 0] [--folder DIR]

Learner, replay and logger are the real ones, called without sockets. Everything that they do to files is recorded:
data, names, and what they waited for the disk to have (fsync). From the record, the states are made that POSIX allows
after a crash. What was synced is there. Of names given, taken and changed since their folder was synced, any part may
be there, in any mixture; of data since its file was synced, all, nothing, a beginning, or zeros in its length.

In each such state the newest snapshot must be whole, and the last one whose commit had returned or the one after it;
agent, replay and logger must load from it, with the very steps that they held; no line that was recorded before it may
be missing; and the run must be able to go on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.snapshot import CONFIG_FILE, Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import load_config, parse_overrides, save_config
from dreamfleet.core.context import RoleContext
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.metrics.sinks.jsonl import JsonlSink
from dreamfleet.replay.store import ReplayOptions, ReplayStore
from dreamfleet.replay.stream import ReplayStream
from dreamfleet.roles.connect import RUN_STEP
from dreamfleet.roles.learner import LearnerRole
from dreamfleet.roles.learner_clients import LearnerClients
from dreamfleet.roles.lockstep.calls import direct_client
from dreamfleet.roles.logger import LoggerRole
from dreamfleet.roles.replay import ReplayRole
from dreamfleet.runs.run_folder import RunFolder

CAPACITY, CHUNK, ROWS = 60, 8, 9  # of replay, so that chunks are evicted between snapshots, and steps between two
WAIT_S = 60.0
HOOKED = ("fsync", "fdatasync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")


@dataclass
class Node:
    """A file or a folder, whatever its names."""

    is_folder: bool
    descriptor: int  # held open while it has a name, so that its inode number is not given to another one
    stamp: tuple[int, int] = (0, 0)
    names: dict[str, int] = field(default_factory=dict)  # of a folder


class Recorder:
    """Writes down what happens to the files below a folder.

    Calls of `os` are seen as they are made; what libraries write by themselves is seen at the next such call, before
    it is carried out.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[tuple[Any, ...]] = []
        self._lock = threading.RLock()  # held during a call, so that what is written down is in order
        self._nodes: dict[int, Node] = {}
        self._numbers: dict[int, int] = {}  # by inode number
        self._add(root)

    @contextmanager
    def recording(self) -> Iterator[None]:
        own = {name: getattr(os, name) for name in HOOKED}
        for name, call in own.items():
            setattr(os, name, self._hook(name, call))
        try:
            yield
        finally:
            for name, call in own.items():
                setattr(os, name, call)

    def mark(self, value: Any) -> None:
        with self._lock:
            self._scan()
            self.operations.append(("mark", value))

    def _hook(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._scan()
                if name in ("fsync", "fdatasync"):
                    result = call(*args, **kwargs)
                    if (number := self._numbers.get(os.fstat(args[0]).st_ino)) is not None:
                        self._look_at_data(number, always=True)  # stamps are too coarse to tell two writes apart
                        self.operations.append(("sync", number))
                    return result
                if name in ("replace", "rename") and self._is_below(args[0]):
                    return self._rename(call, Path(args[0]), Path(args[1]))
                result = call(*args, **kwargs)
                self._scan()
                return result

        return hooked

    def _is_below(self, path: Any) -> bool:
        return Path(path).absolute().is_relative_to(self.root)

    def _rename(self, call: Callable[..., Any], source: Path, target: Path) -> Any:
        """One operation: after a crash it has happened or not, and the old name is there or the new one."""
        result = call(source, target)
        assert source.parent == target.parent, "nothing here moves files between folders"
        folder = self._numbers[source.parent.stat().st_ino]
        names = self._nodes[folder].names
        names[target.name] = names.pop(source.name)
        self.operations.append(("rename", folder, source.name, target.name))
        self._scan()
        return result

    def _add(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY)
        found = os.fstat(descriptor)
        number = len(self._nodes)
        self._nodes[number] = Node(path.is_dir(), descriptor)
        self._numbers[found.st_ino] = number
        return number

    def _scan(self) -> None:
        seen: set[int] = {0}
        self._scan_folder(0, self.root, seen)
        for inode, number in list(self._numbers.items()):
            if number not in seen:
                os.close(self._nodes[number].descriptor)
                del self._numbers[inode]

    def _scan_folder(self, number: int, path: Path, seen: set[int]) -> None:
        node, found = self._nodes[number], {}
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                child = self._numbers.get(entry.inode())
                found[entry.name] = self._add(Path(entry.path)) if child is None else child
        for name in node.names.keys() - found.keys():
            self.operations.append(("unlink", number, name))
        for name, child in found.items():
            if node.names.get(name) != child:
                self.operations.append(("link", number, name, child))
        node.names = found
        for name, child in found.items():
            seen.add(child)
            self._look_at_data(child)
            if self._nodes[child].is_folder:
                self._scan_folder(child, path / name, seen)

    def _look_at_data(self, number: int, always: bool = False) -> None:
        node = self._nodes[number]
        found = os.fstat(node.descriptor)
        if node.is_folder:
            return
        stamp = (found.st_size, found.st_mtime_ns)
        if always or stamp != node.stamp:
            node.stamp = stamp
            self.operations.append(("data", number, os.pread(node.descriptor, found.st_size, 0)))

    def is_folder(self, number: int) -> bool:
        return self._nodes[number].is_folder


@dataclass
class Disk:
    """What the disk has for certain, and what was done since then."""

    recorder: Recorder
    names: dict[int, dict[str, int]] = field(default_factory=dict)  # of folders, as they were when they were synced
    pending: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)  # what was done to their names since then
    synced: dict[int, bytes] = field(default_factory=dict)
    latest: dict[int, bytes] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)  # how much of what was synced nothing has changed since

    def apply(self, operation: tuple[Any, ...]) -> None:
        kind, number, *rest = operation
        if kind == "data":
            self.latest[number] = rest[0]
            self.kept[number] = min(self.kept.get(number, 0), _same(self.synced.get(number, b""), rest[0]))
        elif kind == "sync" and self.recorder.is_folder(number):
            for change in self.pending.pop(number, []):
                _change(self.names.setdefault(number, {}), change, self._target(number, change))
        elif kind == "sync":
            self.synced[number] = self.latest.get(number, b"")
            self.kept[number] = len(self.synced[number])
        elif kind != "mark":
            change = (kind, *rest)
            if kind == "rename":  # its file is known now, and perhaps not after a crash
                change = (kind, *rest, self._now(number)[rest[0]])
            self.pending.setdefault(number, []).append(change)

    def _now(self, folder: int) -> dict[str, int]:
        names = dict(self.names.get(folder, {}))
        for change in self.pending.get(folder, []):
            _change(names, change, self._target(folder, change))
        return names

    def _target(self, folder: int, change: tuple[Any, ...]) -> int | None:
        return change[-1] if change[0] in ("link", "rename") else None

    def crash(self, rng: random.Random, into: Path) -> None:
        """Makes one of the states in which a loss of power may leave the disk."""
        how = rng.choice(("nothing", "everything", "some", "some", "some"))
        into.mkdir()
        self._write_folder(0, into, rng, how)

    def _write_folder(self, number: int, path: Path, rng: random.Random, how: str) -> None:
        names = dict(self.names.get(number, {}))
        for change in self.pending.get(number, []):
            if how == "everything" or (how == "some" and rng.random() < 0.5):
                _change(names, change, self._target(number, change))
        for name, child in names.items():
            if self.recorder.is_folder(child):
                (path / name).mkdir()
                self._write_folder(child, path / name, rng, how)
            else:
                (path / name).write_bytes(self._data(child, rng, how))

    def _data(self, number: int, rng: random.Random, how: str) -> bytes:
        synced, latest = self.synced.get(number), self.latest.get(number, b"")
        if synced == latest or how == "everything":
            return latest
        base = latest[: self.kept.get(number, 0)]
        cut = rng.randint(len(base), len(latest))
        zeros = latest[:cut] + bytes(len(latest) - cut)
        return rng.choice((synced or b"", latest, latest[:cut], base + bytes(len(latest) - len(base)), zeros))


def _same(one: bytes, other: bytes) -> int:
    """How long the beginning is that both have."""
    if other.startswith(one):
        return len(one)
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other))


def _change(names: dict[str, int], change: tuple[Any, ...], node: int | None) -> None:
    kind, *rest = change
    if kind == "unlink":
        names.pop(rest[0], None)
    elif kind == "link":
        names[rest[0]] = rest[1]
    else:
        names.pop(rest[0], None)
        assert node is not None
        names[rest[1]] = node


class Weights:
    """An agent whose arrays say of which step they are."""

    step = 0

    def init_train(self, n: int) -> None: ...

    def stream(self, source: Iterator[Any]) -> Iterator[Any]:
        return iter(dict, None)

    def save(self) -> dict[str, np.ndarray]:
        return {"step": np.full(500, self.step, np.int64)}

    def load(self, data: dict[str, np.ndarray]) -> None:
        assert len(set(data["step"].tolist())) == 1
        self.step = int(data["step"][0])


class Run:
    """The roles of a run that have state on disk, restored from its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.args = FleetArgs(
            logdir=folder, keep=2, keep_every=100, keep_best=1, train_ratio=0, save_every=0, log_every=0, report_every=0
        )
        make = [
            ReplayStore(ReplayOptions(4, CAPACITY, chunksize=CHUNK, folder=folder / "replay" / mode))
            for mode in ("train", "eval")
        ]
        self.replay = ReplayRole(make[0], make[1], lambda store, mode: ReplayStream(store, mode, 2, 4), self.args)
        self.records = MetricsLogger([JsonlSink(folder / "metrics.jsonl")])
        self.logger = LoggerRole(self.records, self.args)
        self.agent = Weights()
        replay, logger = self.replay, self.logger
        clients = LearnerClients(
            sampler=direct_client(replay.sizes, replay.go_back),
            updater=direct_client(),
            replay=direct_client(replay.sizes, replay.capture),
            logger=direct_client(logger.save),
            saving=(direct_client(replay.saved, replay.committed), direct_client(logger.committed)),
        )
        self.learner = LearnerRole(self.agent, self.args, clients, RoleContext("learner"))  # type: ignore[arg-type]
        self.replay.restore()
        self.learner.restore()
        self.logger.restore()

    @property
    def step(self) -> int:
        return int(self.replay.sizes({})["step"])

    def act(self, stream: int) -> None:
        step = self.step + 1
        flags = {"is_first": np.array([False]), "is_last": np.array([step % 5 == 0])}
        row = {"stream": np.array([stream]), "value": np.array([step]), "dyn/value": np.array([step], np.float32)}
        self.replay.add_batch({**row, **flags, RUN_STEP: np.array(step)})
        told = {"env": np.array([0]), "stream": np.array([stream]), "reward": np.array([1.0], np.float32)}
        self.logger.tran({**told, **flags, "is_first": np.array([step % 5 == 1]), RUN_STEP: np.array(step)})
        self.records.add({"loss": 1.0})
        self.records.write()

    def save(self, meanwhile: Callable[[], None]) -> None:
        self.agent.step = self.step
        self.learner.updates += 1
        self.learner.save()
        meanwhile()
        self.learner.snapshots.await_written(WAIT_S)

    def close(self) -> None:
        self.replay.limiter.close()
        self.replay._pool.shutdown()
        self.replay.train.close()
        self.replay.evaluation.close()
        self.logger._file.close()
        self.records.close(WAIT_S)


def record(root: Path, snapshots: int, rng: random.Random) -> Recorder:
    """A run that is started several times, as each of its processes would be."""
    recorder = Recorder(root)
    with recorder.recording(), contextlib.redirect_stderr(io.StringIO()):
        run_dir, taken = root / "runs" / "one", 0
        while taken < snapshots:
            with RunFolder(run_dir) as folder:
                save_config(parse_overrides([f"seed={taken}"]), folder.path / CONFIG_FILE)
                run = Run(folder.path)
                stream = 1000 * taken
                for number in range(rng.randint(1, 8)):
                    for _ in range(ROWS):
                        run.act(stream + number)
                    run.save(lambda run=run, stream=stream: [run.act(stream) for _ in range(3)])  # type: ignore[misc]
                    taken += 1
                    recorder.mark(int(Snapshots(run_dir).manifest()["step"]))
                run.close()
    return recorder


def check(run_dir: Path, committed: int, rng: random.Random) -> str | None:
    """Say what is wrong with what is left of the run, of whose snapshots the one of step `committed` was complete."""
    if not run_dir.exists():
        return "the run folder is lost" if committed else None
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            if committed:
                _check_config(run_dir / CONFIG_FILE)
            snapshots = Snapshots(run_dir)
            damaged = [found for found in snapshots.all() if found.damage]
            if damaged:
                return f"snapshot {damaged[0].folder.name} is damaged: {damaged[0].damage}"
            latest = snapshots.latest()
            step = int(snapshots.manifest().get("step", 0))
            if step < committed:
                return f"the newest snapshot is of step {step}, and the one of step {committed} was complete"
            if latest is not None and set(load_arrays(latest / "agent.safetensors")["step"].tolist()) - {step}:
                return "the agent is of another step"
            problem = _check_run(run_dir, step, go_on=rng.random() < 0.1) or _check_records(run_dir, committed)
            return problem or said.getvalue().strip() or None
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def _check_config(path: Path, sound: set[bytes] = set()) -> None:  # noqa: B006, reading YAML takes long
    if (text := path.read_bytes()) not in sound:
        load_config(path)
        sound.add(text)


def _check_run(run_dir: Path, step: int, go_on: bool) -> str | None:
    run = Run(run_dir)
    try:
        if run.step != step or run.agent.step != step:
            return f"replay is at step {run.step} and the agent at {run.agent.step}, the snapshot at {step}"
        stats = run.replay.train.stats()  # type: ignore[attr-defined]
        if stats["chunks_damaged"]:
            return f"{stats['chunks_damaged']} chunks of replay are damaged"
        if go_on:
            for _ in range(ROWS):
                run.act(10**6)
            run.save(lambda: None)
            if Snapshots(run_dir).manifest()["step"] != step + ROWS:
                return "the run could not take another snapshot"
        return None
    finally:
        run.close()


def _check_records(run_dir: Path, committed: int) -> str | None:
    """A row was written for every step. One that the logger goes back to is in another file."""
    rows = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_bytes().splitlines()]
    missing = set(range(1, committed + 1)) - set(rows)
    return f"the record lacks {len(missing)} lines of before the snapshot" if missing else None


def cut_power(cuts: int, snapshots: int, seed: int, folder: Path) -> dict[str, Any]:
    """Records a run, cuts it at that many random moments and says what was wrong afterwards."""
    rng, wrong, start = random.Random(seed), Counter[str](), time.monotonic()
    (root := folder / "root").mkdir()
    recorder = record(root, snapshots, rng)
    moments = sorted(rng.choices(range(len(recorder.operations) + 1), k=cuts))
    disk, committed, done = Disk(recorder), 0, 0
    for moment in moments:
        for operation in recorder.operations[done:moment]:
            disk.apply(operation)
            committed = operation[1] if operation[0] == "mark" else committed
        done = moment
        after = folder / "after"
        disk.crash(rng, after)
        if problem := check(after / "runs" / "one", committed, rng):
            wrong[problem] += 1
        shutil.rmtree(after)
    return {
        "cuts": cuts,
        "damaged": wrong.total(),
        "operations": len(recorder.operations),
        "snapshots": sum(operation[0] == "mark" for operation in recorder.operations),
        "syncs": sum(operation[0] == "sync" for operation in recorder.operations),
        "seconds": round(time.monotonic() - start, 1),
        "problems": dict(wrong.most_common(10)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--snapshots", type=int, default=40, help="that the run takes, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="for what is written; else a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = cut_power(options.cuts, options.snapshots, options.seed, Path(folder).resolve())
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:12}{value}")


if __name__ == "__main__":
    main()
