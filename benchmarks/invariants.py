"""What is true of a run folder at any moment, whatever was done to the fleet that writes it.

For runs whose replay evicts nothing. Of an environment that tells its `life` and the `count` of every step, as
`tests/support/surviving.py` has one, the steps themselves are compared as well.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from bisect import bisect
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.manifest import find_damage, outside_files, read_manifest
from dreamfleet.checkpoint.snapshot import CONFIG_FILE
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import load_config
from dreamfleet.core.errors import DreamfleetError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.launch.replay_options import replay_options
from dreamfleet.replay.persistence import extents
from dreamfleet.replay.store import ReplayStore
from dreamfleet.roles.replay import make_limiter

TRIES = 20  # a live run replaces its snapshots while they are looked at
RECORDS = {"metrics.jsonl": ("time",), "episodes.jsonl": ("step", "env", "mode")}  # with what no two lines share


class Invariants:
    """Looks at one run folder again and again, also while its fleet is alive. Says in words what does not hold."""

    def __init__(self, run: Path) -> None:
        self.checked: Counter[str] = Counter()  # by the invariant's name
        self.broken: list[str] = []  # all that was ever found
        self.step = 0  # of the newest snapshot seen
        self.lost = 0  # of its steps, those that replay does not have
        self._run = run
        self._aside = run.with_name(f"{run.name}.looked-at")

    def look(self) -> list[str]:
        """What does not hold now."""
        before = len(self.broken)
        try:
            snapshot = self._take()
            if snapshot is not None:
                self._check_snapshot(snapshot)
        except DreamfleetError as error:
            self.expect("the snapshot can be loaded", False, str(error))
        finally:
            shutil.rmtree(self._aside, ignore_errors=True)
        self.look_at_records()
        return self.broken[before:]

    def look_at_records(self) -> None:
        """Without snapshots: all there is to see of a run whose replay is elsewhere."""
        restored = [entry for entry in self._read("events.jsonl") if entry["event"] == "restore"]
        for name, marks in RECORDS.items():
            self._check_records(name, marks, restored)

    def expect(self, name: str, holds: object, found: object = "") -> None:
        self.checked[name] += 1
        if not holds:
            self.broken.append(f"{name}: {found}")

    def _take(self) -> Path | None:
        """A copy of the newest snapshot and links to its chunks, which never change: the fleet cannot take them away,
        and loading them, which deletes what the snapshot does not name, cannot harm the fleet.
        """
        for _ in range(TRIES):
            shutil.rmtree(self._aside, ignore_errors=True)
            newest = max(self._run.glob("snapshots/" + "[0-9]" * 12), default=None)
            if newest is None:
                self.expect("a snapshot that was taken stays", not self.step, f"{self.step} is gone")
                return None
            copy = self._aside / "snapshots" / newest.name
            try:
                shutil.copytree(newest, copy)
                for name in outside_files(copy):
                    (self._aside / name).parent.mkdir(parents=True, exist_ok=True)
                    os.link(self._run / name, self._aside / name)
                damage = find_damage(copy, self._aside, read_manifest(copy), contents=True)
            except (OSError, shutil.Error):  # it was being completed, or retention deleted it
                continue
            except DreamfleetError as error:
                damage = str(error)
            if damage is None or newest.is_dir():
                self.expect("the newest snapshot is whole", damage is None, f"{newest.name}: {damage}")
                return copy if damage is None else None
        self.expect("the newest snapshot is whole", False, "it could not be copied from the live run")
        return None

    def _check_snapshot(self, folder: Path) -> None:
        manifest, limiter = read_manifest(folder), load_arrays(folder / "limiter.safetensors")
        self.expect("the snapshot's step never goes back", manifest["step"] >= self.step, (manifest["step"], self.step))
        self.step, self.lost = manifest["step"], manifest["lost"]
        agent = load_arrays(folder / "agent.safetensors")
        if "updates" in agent:
            self.expect(
                "the agent is of the snapshot's updates", agent["updates"] == manifest["updates"], manifest["updates"]
            )
        config = load_config(folder / CONFIG_FILE)
        store = ReplayStore(replay_options(config, self._aside, "train"))
        try:
            store.load(load_arrays(folder / "replay_train.safetensors"))
            counts = store.stats()
            self._check_counts(counts, limiter, manifest, FleetArgs.from_config(config, self._run))
            streams = stored_streams(store)
        finally:
            store.close()
        held = sum(len(steps["is_first"]) for steps in streams.values())
        self.expect("replay holds every step it has counted", held == counts["inserts"], (held, counts["inserts"]))
        self._check_streams(streams)

    def _check_counts(
        self, counts: Mapping[str, float], limiter: Arrays, manifest: Mapping[str, Any], args: FleetArgs
    ) -> None:
        size, samples = int(limiter["size"]), int(limiter["samples"])
        expected = manifest["step"] - manifest["lost"]
        self.expect("no chunk is damaged", counts["chunks_damaged"] == 0, counts)
        self.expect("inserts are the limiter's", counts["inserts"] == size, (counts["inserts"], size))
        self.expect("inserts are the manifest's", size == expected, (size, manifest["step"], manifest["lost"]))
        others = counts["samples"] - samples  # those of reports, which pass the limiter by
        right = others >= 0 and others % args.batch_size == 0 if args.report_every else others == 0
        self.expect("samples are the limiter's and those of reports", right, (counts["samples"], samples))
        rule = make_limiter(args, [])  # type: ignore[arg-type]
        balance = max(0, size - rule.min_size + 1) * rule.samples_per_insert - rule.min_size - samples
        self.expect("the limiter's balance is exact", limiter["balance"] == balance, (limiter["balance"], balance))

    def _check_streams(self, streams: Mapping[int, Arrays]) -> None:
        seen: Counter[tuple[int, int]] = Counter()
        for stream, steps in streams.items():
            first, last = steps["is_first"], steps["is_last"]
            index = steps["index"]
            self.expect("a stream is there from its first step on", index[0] == 0, (stream, index[0]))
            self.expect("no step of a stream is missing", (np.diff(index) == 1).all(), (stream, index))
            self.expect("a stream begins with a first step", first[0], stream)
            self.expect("episodes follow each other", (first[1:] == last[:-1]).all(), stream)
            if "count" in steps:
                count, life = steps["count"], steps["life"]
                goes_on = (np.diff(count) == 1).all() and (life == life[0]).all()
                self.expect("a stream is one life without a gap", goes_on, (stream, count[:1], count[-1:], life[0]))
                seen.update(zip(life.tolist(), count.tolist(), strict=True))
        twice = [step for step, times in seen.items() if times > 1]
        self.expect("no step is in replay twice", not twice, twice[:5])

    def _check_records(self, name: str, marks: tuple[str, ...], restored: list[dict[str, Any]]) -> None:
        rows = self._read(name)
        back = [(a, b) for a, b in itertools.pairwise(row["step"] for row in rows) if b < a]
        self.expect(f"{name} never goes back", not back, back[:5])
        counts = Counter(tuple(row[mark] for mark in marks) for row in rows)
        twice = [key for key, count in counts.items() if count > 1]
        self.expect(f"{name} has no line twice", not twice, twice[:5])
        times = [entry["time"] for entry in restored]
        steps = [int(entry["detail"].get("step", entry["detail"]["snapshot"])) for entry in restored]
        least = list(itertools.accumulate(reversed(steps), min))[::-1]  # to which the run went back then or later
        undone = [
            row for row in rows if (after := bisect(times, row["time"])) < len(times) and row["step"] > least[after]
        ]
        self.expect(f"{name} has no line of an undone step", not undone, undone[:5])

    def _read(self, name: str) -> list[dict[str, Any]]:
        path = self._run / name
        *lines, _ = path.read_text().split("\n") if path.exists() else [""]  # the last one may be on its way
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                self.expect(f"{name} has whole lines", False, f"line {number}: {line[:200]!r}")
        self.expect(f"{name} has whole lines", True)
        return rows


def stored_streams(store: ReplayStore) -> dict[int, Arrays]:
    """Every step that a replay holds, by stream and in order, with its `index` in the stream."""
    memory = store._memory
    parts: dict[int, list[tuple[int, Arrays]]] = {}
    for extent in extents(memory) if memory else ():
        views = memory.columns.chunk(extent.chunk, extent.length)
        steps = {key: np.array(views[key]) for key in ("is_first", "is_last", "count", "life") if key in views}
        steps["index"] = np.arange(extent.start, extent.start + extent.length)
        parts.setdefault(extent.stream, []).append((extent.start, steps))
    found = {}
    for stream, chunks in parts.items():
        ordered = [steps for _, steps in sorted(chunks, key=lambda chunk: chunk[0])]
        found[stream] = {key: np.concatenate([steps[key] for steps in ordered]) for key in ordered[0]}
    return found
