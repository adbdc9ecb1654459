"""Train the next runs of the list, some side by side, within a time limit."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dreamfleet.commands.plot.curves import read_rows
from dreamfleet.launch.env_child import last_line
from dreamfleet.supervision.exit_codes import EXIT_DONE, EXIT_INTERRUPTED
from dreamfleet.supervision.terminal import print_line
from ledger.records import make_record, write_records
from ledger.runs import Run, expected_minutes

RECORDS = "proof.jsonl.gz"
MIN_S = 90.0  # no run starts with less time left in a call: it would hardly compile
SAME_PROGRAMS = ("atari100k",)  # suites whose tasks have equal spaces, so that all compile the same programs
LOOK_S = 1.0  # between two looks at a run that compiles
STATE = "proof.json"


@dataclass(frozen=True)
class Budget:
    """Times of `time.time()`; infinite where there is no limit."""

    stop: float = math.inf  # when runs are asked to stop
    kill: float = math.inf  # when those left are killed
    machine: float = math.inf  # when the machine goes, with all unfinished runs


@dataclass
class Session:
    """One call of `run`. Each run lives in `folder/NAME`; `back` receives the records of finished ones.

    Runs of the same programs wait until the first of them has compiled: five that compiled at once on 16 cores took
    200 s, one alone takes a minute, and the others then find its programs in the cache.
    """

    runs: Sequence[Run]
    folder: Path
    back: Path
    at_once: int
    budget: Budget
    commit: str
    results: Sequence[Mapping[str, Any]] = ()  # collected before
    words: Sequence[str] = ()  # for this machine, such as jax.prealloc=false
    program: Sequence[str] = (sys.executable, "-m", "dreamfleet", "train")
    _active: dict[str, Process] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)  # in this call
    _asked: asyncio.Event = field(default_factory=asyncio.Event)  # to stop
    _stopping: bool = False
    _signalled: bool = False  # the runs received the same signal as this process

    async def make(self) -> dict[str, list[str]]:
        """Train and return the names of the runs by outcome: finished, interrupted, failed, left."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.stop, True)  # a terminal sends it to the runs, too
        loop.add_signal_handler(signal.SIGTERM, self.stop, False)
        asked = asyncio.create_task(self._asked.wait())
        tasks: set[asyncio.Task[None]] = set()
        while not self._stopping:
            while len(tasks) < self.at_once and not self._compiling() and (run := self.next()):
                self._active[run.name] = await self._start(run)
                tasks.add(asyncio.create_task(self._follow(run)))
            if not tasks:
                break
            left = self.budget.stop - time.time()
            limit = min(left, LOOK_S) if self._compiling() else left
            timeout = None if math.isinf(limit) else max(0.0, limit)
            done, _ = await asyncio.wait({*tasks, asked}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            tasks -= done
            self._stopping = asked in done or time.time() >= self.budget.stop
            for task in done - {asked}:
                task.result()
        await self._end(tasks)
        asked.cancel()
        return self._outcome()

    def stop(self, signalled: bool) -> None:
        self._signalled = signalled
        self._asked.set()

    def next(self) -> Run | None:
        """Return the run to start now: interrupted ones first, then in list order, among those that can finish."""
        now = time.time()
        if self.budget.stop - now < MIN_S:
            return None
        open_runs = [run for run in self.runs if self._is_open(run)]
        open_runs.sort(key=lambda run: not self._run_dir(run).exists())
        return next((run for run in open_runs if now + self._left_s(run) <= self.budget.machine), None)

    def _compiling(self) -> bool:
        """Return whether the run that comes next waits for one that compiles the same programs."""
        coming = self.next()
        if coming is None or coming.suite not in SAME_PROGRAMS:
            return False
        alike = [run for run in self.runs if (run.suite, run.size) == (coming.suite, coming.size)]
        if any(self._spent_s(run) for run in alike):  # their programs are in the cache
            return False
        active = [run for run in alike if run.name in self._active]
        return bool(active) and not any(self._has_compiled(run) for run in active)

    def _has_compiled(self, run: Run) -> bool:
        events = read_rows(self._run_dir(run) / "events.jsonl")
        return any((event.get("role"), event.get("event")) == ("agent", "ready") for event in events)

    def _is_open(self, run: Run) -> bool:
        collected = any(result["name"] == run.name for result in self.results)
        return not (collected or run.name in self._active or run.name in self._failed or self._record(run).exists())

    def _left_s(self, run: Run) -> float:
        """Return the expected seconds until a run ends; resuming one takes up to a minute."""
        expected = 60 * expected_minutes(run, self.at_once, self.results)
        return max(60.0, expected - self._spent_s(run))

    async def _start(self, run: Run) -> Process:
        begun = "continued" if self._run_dir(run).exists() else "begun"
        (self.folder / run.name).mkdir(parents=True, exist_ok=True)
        print_line(f"{run.name}: {begun}, about {self._left_s(run) / 60:.0f} minutes, see {self._log(run)}")
        command = [*self.program, *run.command, *self.words]
        with self._log(run).open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                *("--run-dir", str(self._run_dir(run))),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"JAX_COMPILATION_CACHE_DIR": str((self.folder / "compiled").resolve()), **os.environ},
            )

    async def _follow(self, run: Run) -> None:
        begun = time.time()
        code = await self._active[run.name].wait()
        seconds = self._spent_s(run) + time.time() - begun
        state = {"seconds": seconds, "at_once": max(self.at_once, self._state(run).get("at_once", 1))}
        (self.folder / run.name / STATE).write_text(json.dumps(state))
        del self._active[run.name]
        if code == EXIT_DONE:
            record = make_record(run, self._run_dir(run), seconds, state["at_once"], self.commit)
            self._record(run).write_text(json.dumps(record))
            self._write_back()
            print_line(f"{run.name}: {record['score']:.1f} after {seconds / 60:.1f} minutes")
        elif code == EXIT_INTERRUPTED and self._stopping:
            print_line(f"{run.name}: interrupted after {seconds / 60:.1f} minutes")
        else:
            self._failed.add(run.name)
            said = last_line(self._log(run).read_text(errors="replace"), "nothing said")
            print_line(f"{run.name}: ended with code {code}: {said}")

    async def _end(self, tasks: set[asyncio.Task[None]]) -> None:
        if not self._signalled:
            for process in self._active.values():
                process.send_signal(signal.SIGINT)
        if tasks:
            left = self.budget.kill - time.time()
            _, late = await asyncio.wait(tasks, timeout=None if math.isinf(left) else max(1.0, left))
            for name, process in list(self._active.items()):
                print_line(f"{name}: killed at the end of the time")
                process.kill()
            if late:
                await asyncio.wait(late)
        for task in tasks:
            task.result()

    def _outcome(self) -> dict[str, list[str]]:
        finished = [run.name for run in self.runs if self._record(run).exists()]
        left = [run for run in self.runs if self._is_open(run)]
        return {
            "finished": finished,
            "interrupted": [run.name for run in left if self._run_dir(run).exists()],
            "failed": sorted(self._failed),
            "left": [run.name for run in left if not self._run_dir(run).exists()],
        }

    def _write_back(self) -> None:
        records = [json.loads(self._record(run).read_text()) for run in self.runs if self._record(run).exists()]
        write_records(self.back / RECORDS, records)

    def _run_dir(self, run: Run) -> Path:
        return self.folder / run.name / "run"

    def _record(self, run: Run) -> Path:
        return self.folder / run.name / "record.json"

    def _log(self, run: Run) -> Path:
        return self.folder / run.name / "log"

    def _state(self, run: Run) -> dict[str, Any]:
        path = self.folder / run.name / STATE
        return json.loads(path.read_text()) if path.exists() else {}

    def _spent_s(self, run: Run) -> float:
        return float(self._state(run).get("seconds", 0.0))


def machine_end(folder: Path, minutes: float) -> float:
    """Return when the machine goes: `minutes` after the first call on it, whose time the folder keeps."""
    stamp = folder / "first-call"
    folder.mkdir(parents=True, exist_ok=True)
    if not stamp.exists():
        stamp.write_text(repr(time.time()))
    return float(stamp.read_text()) + 60 * minutes
