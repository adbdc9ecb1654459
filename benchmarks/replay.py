"""Replay: what inserting, sampling and writing back cost, beside the machine's memcpy in the same run.

    python benchmarks/replay.py [--json] [--capacity 65536]
    python benchmarks/replay.py --soak [--json] [--capacity 40960] [--folder DIR]

A step has a 64x64x3 image, the latents of size12m (2048 bfloat16 and 32 uint8) and scalars, 16.4 kB in all. Inserts are
measured while memory is used for the first time, when the system has to hand out pages, and once old steps make way for
new ones. Draws by priority are measured beside uniform ones in replays of small steps, in rounds as at a train ratio of
32: inserts, a sample and what an update writes back. `--soak` inserts three times the capacity into a replay on disk,
with samples, updates and snapshots, and says whether memory and disk stay where they were; then it loads the last
snapshot in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np
import psutil

from dreamfleet.checkpoint.arrays import load_arrays, save_arrays
from dreamfleet.replay.store import ReplayOptions, ReplayStore

BATCH, LENGTH, CONTEXT = 16, 64, 1
INSERT_BATCHES = (1, 16, 64)
CHUNKSIZE = 1024
SOAK_CHUNKSIZE = 128  # 20 chunks per stream; the default has 300 of 1024 steps, which would take 80 GB
STREAMS = 16
BLOCK_STEPS = 2048  # inserts are timed in blocks of so many, and the median block counts
REPEATS = 60
POINTS_PER_CAPACITY, POINTS_PER_SNAPSHOT = 32, 8  # of the soak
ITEMS = 1_000_000  # windows that draws by priority are measured with
TRAIN_RATIO = 32
GOALS = {"insert_us": 5.0, "sample_of_memcpy": 0.6, "update_ms": 1.0, "growth": 1.05, "load_peak": 1.1}

Arrays = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--soak", action="store_true", help="insert 3 times the capacity with snapshots on disk")
    parser.add_argument("--capacity", type=int, help="steps that the replay holds")
    parser.add_argument("--items", type=int, default=ITEMS, help="windows for draws by priority; 0: leave them out")
    parser.add_argument("--folder", type=Path, help="where the soak keeps its files; else a temporary folder")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(load_snapshot(options.load, options.capacity)))
        return
    if options.soak:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            result = soak(Path(folder), options.capacity or 40_960)
    else:
        result = measure(options.capacity or 65_536)
        if options.items:
            result["by_selector"] = measure_selectors(options.items)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}
    result = {"machine": machine, **result}
    print(json.dumps(result) if options.json else table(result))


def make_step(batch: int, rng: np.random.Generator) -> Arrays:
    """One step of each of `batch` streams."""
    return {
        "stream": np.arange(batch, dtype=np.int64),
        "image": rng.integers(0, 256, (batch, 64, 64, 3), np.uint8),
        "dyn/deter": rng.standard_normal((batch, 2048), np.float32).astype(ml_dtypes.bfloat16),
        "dyn/stoch": rng.integers(0, 64, (batch, 32), np.uint8),
        "action": rng.integers(0, 17, batch, np.int32),
        "reward": rng.standard_normal(batch, np.float32),
        "is_first": np.zeros(batch, bool),
        "is_last": np.zeros(batch, bool),
        "is_terminal": np.zeros(batch, bool),
    }


def raw_step_bytes() -> int:
    step = make_step(1, np.random.default_rng(0))
    return sum(value.nbytes for key, value in step.items() if key != "stream")


def make_store(capacity: int) -> ReplayStore:
    return ReplayStore(ReplayOptions(LENGTH + CONTEXT, capacity, CONTEXT, chunksize=CHUNKSIZE))


def make_soaked_store(capacity: int, folder: Path) -> ReplayStore:
    files = folder / "replay"
    return ReplayStore(ReplayOptions(LENGTH + CONTEXT, capacity, CONTEXT, chunksize=SOAK_CHUNKSIZE, folder=files))


def steps_forever(batch: int) -> Iterator[Arrays]:
    """Different steps in turn, so that what is inserted does not lie in the cache already."""
    rng = np.random.default_rng(batch)
    made = [make_step(batch, rng) for _ in range(max(4, 256 // batch))]
    while True:
        yield from made


def measure(capacity: int) -> dict[str, Any]:
    inserts = {batch: measure_inserts(batch, capacity) for batch in INSERT_BATCHES}
    store = make_store(capacity)
    steps = steps_forever(STREAMS)
    while len(store) < capacity:
        store.add_batch(next(steps))
    return {
        "step_bytes": raw_step_bytes(),
        "capacity": capacity,
        "insert_us_per_step": inserts,
        "sample": measure_samples(store),
        "update": measure_updates(store),
        "peak_memory_gb": round(peak_bytes() / 1e9, 2),
        "goals": {key: GOALS[key] for key in ("insert_us", "sample_of_memcpy", "update_ms")},
    }


def measure_inserts(batch: int, capacity: int) -> dict[str, float]:
    """µs per step on first use of memory, and after the capacity was passed and every stream reuses chunks."""
    store = make_store(capacity)
    steps = steps_forever(batch)
    first = time_blocks(store, steps, batch, capacity)
    for _ in range(2 * CHUNKSIZE):
        store.add_batch(next(steps))
    steady = time_blocks(store, steps, batch, capacity // 2)
    store.close()
    return {"first_use": round(median(first), 2), "steady": round(median(steady), 2)}


def time_blocks(store: ReplayStore, steps: Iterator[Arrays], batch: int, total: int) -> list[float]:
    blocks = []
    for _ in range(total // BLOCK_STEPS):
        rows = [next(steps) for _ in range(BLOCK_STEPS // batch)]
        start = time.perf_counter()
        for row in rows:
            store.add_batch(row)
        blocks.append(1e6 * (time.perf_counter() - start) / BLOCK_STEPS)
    return blocks


def measure_samples(store: ReplayStore) -> dict[str, float]:
    """A batch is new memory each time, so memcpy is measured into new memory as well as into a buffer in use."""
    nbytes = sum(value.nbytes for value in store.sample(BATCH, "train").values())
    source = np.random.default_rng(0).integers(0, 256, (16, nbytes), np.uint8)  # more than a cache holds
    target = np.zeros(nbytes, np.uint8)
    times: dict[str, list[float]] = {"sample": [], "memcpy": [], "memcpy_new": []}
    for number in range(REPEATS):  # in turn: what disturbs the machine disturbs all of them
        row, other = source[number % len(source)], source[(number + 8) % len(source)]
        times["sample"].append(seconds(lambda: store.sample(BATCH, "train")))
        times["memcpy"].append(seconds(lambda row=row: np.copyto(target, row)))
        times["memcpy_new"].append(seconds(other.copy))
    speed = {name: nbytes / 1e9 / median(values) for name, values in times.items()}
    return {
        "windows": BATCH,
        "window_steps": LENGTH + CONTEXT,
        "mb": round(nbytes / 1e6, 2),
        "ms": round(1e3 * median(times["sample"]), 3),
        "gb_per_s": round(speed["sample"], 2),
        "memcpy_gb_per_s": round(speed["memcpy"], 2),
        "memcpy_new_memory_gb_per_s": round(speed["memcpy_new"], 2),
        "ratio_to_memcpy": round(speed["sample"] / speed["memcpy"], 3),
        "ratio_to_memcpy_new_memory": round(speed["sample"] / speed["memcpy_new"], 3),
    }


def measure_updates(store: ReplayStore) -> dict[str, float]:
    times, copies = [], []
    for number in range(REPEATS):
        data = make_update(store, number)
        spare = {key: np.zeros_like(value) for key, value in data.items()}
        times.append(seconds(lambda data=data: store.update(data)))
        copies.append(seconds(lambda data=data, spare=spare: [np.copyto(spare[key], data[key]) for key in data]))
    nbytes = sum(value.nbytes for value in data.values())
    return {
        "steps": BATCH * LENGTH,
        "mb": round(nbytes / 1e6, 2),
        "ms": round(1e3 * median(times), 3),
        "gb_per_s": round(nbytes / 1e9 / median(times), 2),
        "memcpy_ms": round(1e3 * median(copies), 3),
        "ratio_to_memcpy": round(median(copies) / median(times), 3),
    }


def measure_selectors(items: int) -> dict[str, Any]:
    """CPU time with full replays whose steps all have a priority, in turn."""
    kinds = ("uniform", "priority")
    stores = {kind: make_prioritized(items, {kind: 1.0}) for kind in kinds}
    times: dict[str, list[float]] = {f"{kind} {part}": [] for kind in kinds for part in ("insert", "sample", "update")}
    inserts = BATCH * LENGTH // TRAIN_RATIO // STREAMS
    for number in range(5 * REPEATS):
        for kind, store in stores.items():
            rows = [small_steps(STREAMS) for _ in range(inserts)]
            marks = [time.thread_time()]
            for row in rows:
                store.add_batch(row)
            marks.append(time.thread_time())
            batch = store.sample(BATCH, "train")
            marks.append(time.thread_time())
            update = small_update(batch["stepid"][:, CONTEXT:], number)
            begin = time.thread_time()
            store.update(update)
            times[f"{kind} insert"].append((marks[1] - marks[0]) / inserts / STREAMS)
            times[f"{kind} sample"].append(marks[2] - marks[1])
            times[f"{kind} update"].append(time.thread_time() - begin)
    found: dict[str, Any] = {"windows": items}
    for kind in kinds:
        found[kind] = {
            "insert_us_per_step": round(1e6 * median(times[f"{kind} insert"]), 2),
            "sample_ms": round(1e3 * median(times[f"{kind} sample"]), 3),
            "update_ms": round(1e3 * median(times[f"{kind} update"]), 3),
        }
    return found


def make_prioritized(items: int, fracs: dict[str, float]) -> ReplayStore:
    store = ReplayStore(ReplayOptions(LENGTH + CONTEXT, items, CONTEXT, chunksize=CHUNKSIZE, fracs=fracs))
    while store.stats()["inserts"] < items + STREAMS * LENGTH:
        store.add_batch(small_steps(STREAMS))
    for begin in range(0, int(store.stats()["inserts"]) // STREAMS, LENGTH):
        steps = np.arange(begin, begin + LENGTH)
        stepid = np.stack(np.broadcast_arrays(np.arange(STREAMS)[:, None], steps), 2)
        store.update(small_update(stepid, begin))
    return store


def small_steps(batch: int) -> Arrays:
    flags = {key: np.zeros(batch, bool) for key in ("is_first", "is_last", "is_terminal")}
    return {"stream": np.arange(batch, dtype=np.int64), "reward": np.zeros(batch, np.float32), **flags}


def small_update(stepid: np.ndarray, seed: int) -> Arrays:
    return {"stepid": stepid, "priority": np.random.default_rng(seed).uniform(2, 10, stepid.shape[:2])}


def make_update(store: ReplayStore, seed: int) -> Arrays:
    stepid = store.sample(BATCH, "train")["stepid"][:, CONTEXT:]
    rng = np.random.default_rng(seed)
    deter = rng.standard_normal((BATCH, LENGTH, 2048), np.float32).astype(ml_dtypes.bfloat16)
    return {"stepid": stepid, "dyn/deter": deter, "dyn/stoch": rng.integers(0, 64, (BATCH, LENGTH, 32), np.uint8)}


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - start
    del result  # giving memory back does not count
    return elapsed


def soak(folder: Path, capacity: int) -> dict[str, Any]:
    """The first peak is that of the first half capacity after the replay was full, the last that of the last half."""
    base = resident_bytes()
    store = make_soaked_store(capacity, folder)
    start = time.perf_counter()
    saves: list[float] = []
    points = list(soak_points(store, folder, capacity, saves))
    elapsed = time.perf_counter() - start
    store.close()
    first, last = peaks(points, 1.0, 1.5), peaks(points, 2.5, 3.0)
    return {
        "step_bytes": raw_step_bytes(),
        "capacity": capacity,
        "inserted": int(store.stats()["inserts"]),
        "streams": STREAMS,
        "seconds": round(elapsed, 1),
        "save_s": round(median(saves), 2),
        "memory_gb": growth(first[0] - base, last[0] - base),
        "disk_gb": growth(first[1], last[1]),
        "load": load_elsewhere(folder, capacity),
        "goals": {key: GOALS[key] for key in ("growth", "load_peak")},
    }


Point = tuple[float, int, int]  # capacities inserted, memory, disk


def soak_points(store: ReplayStore, folder: Path, capacity: int, saves: list[float]) -> Iterator[Point]:
    steps = steps_forever(STREAMS)
    for number in range(1, 3 * POINTS_PER_CAPACITY + 1):
        for _ in range(capacity // POINTS_PER_CAPACITY // STREAMS):
            store.add_batch(next(steps))
        if number % POINTS_PER_SNAPSHOT == 0:
            store.update(make_update(store, number))
            saves.append(seconds(lambda: save_snapshot(store, folder)))
        yield number / POINTS_PER_CAPACITY, resident_bytes(), folder_bytes(folder)


def peaks(points: list[Point], after: float, until: float) -> tuple[int, int]:
    inside = [point for point in points if after < point[0] <= until]
    return max(memory for _, memory, _ in inside), max(disk for _, _, disk in inside)


def growth(first: int, last: int) -> dict[str, float]:
    return {"first": round(first / 1e9, 3), "last": round(last / 1e9, 3), "ratio": round(last / first, 3)}


def save_snapshot(store: ReplayStore, folder: Path) -> None:
    save_arrays(folder / "index.safetensors", store.save())
    store.committed()


def load_elsewhere(folder: Path, capacity: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--load", str(folder), "--capacity", str(capacity)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    loaded: dict[str, Any] = json.loads(ended.stdout)
    return loaded


def load_snapshot(folder: Path, capacity: int) -> dict[str, Any]:
    base = resident_bytes()
    store = make_soaked_store(capacity, folder)
    index = load_arrays(folder / "index.safetensors")
    elapsed = seconds(lambda: store.load(index))
    peak, holding = peak_bytes() - base, resident_bytes() - base
    steps = int(index["chunks"][:, 2].sum())
    store.close()
    return {
        "seconds": round(elapsed, 2),
        "steps": steps,
        "peak_gb": round(peak / 1e9, 3),
        "holding_gb": round(holding / 1e9, 3),
        "peak_to_holding": round(peak / holding, 3),
        "bytes_per_step": round(holding / steps),
        "bytes_to_raw": round(holding / steps / raw_step_bytes(), 3),
    }


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """The most that this process ever had. `getrusage` would count what its parent had when it started it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def folder_bytes(folder: Path) -> int:
    sizes = 0
    for path in (folder / "replay").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the writer renames and deletes meanwhile
            sizes += path.stat().st_size
    return sizes


def table(result: dict[str, Any], indent: str = "") -> str:
    lines = []
    for key, value in result.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}", table(value, indent + "  ")]
        else:
            shown = f"{value:.3f}" if isinstance(value, float) else str(value)
            lines.append(f"{indent}{key!s:{32 - len(indent)}} {shown:>12}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
