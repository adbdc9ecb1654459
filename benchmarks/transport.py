"""Observations through the batch server: ours against `portal`, in the same run on the same machine.

Client processes send an observation (64x64x3 uint8 image and scalars) and wait for the action, as environments do. The
handler is a small NumPy policy. Every reply is checked to be the answer to its request.

Both sides are measured in turn, several times, and the best round of each counts: whatever else the machine does can
only slow a round down. All rounds are in the JSON.

    python benchmarks/transport.py [--json] [--seconds 4] [--rounds 2] [--clients 8]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import platform
import socket
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil

ENVS_PER_MESSAGE = (1, 8)
PORTAL_BATCH = 4  # messages; portal waits for exactly this many
MAX_ROWS = 64
WARM_UP_S = 1.5
START_TIMEOUT_S = 60

Arrays = dict[str, np.ndarray]
Step = Callable[[int], Arrays]  # sends an observation with this slot, returns the reply


def make_observation(envs: int) -> Arrays:
    """One observation per environment, stacked."""
    return {
        "image": np.random.default_rng(0).integers(0, 255, (envs, 64, 64, 3), np.uint8),
        "reward": np.zeros(envs, np.float32),
        "is_first": np.zeros(envs, bool),
        "is_last": np.zeros(envs, bool),
        "is_terminal": np.zeros(envs, bool),
        "slot": np.zeros(envs, np.int32),
    }


def policy(obs: Arrays) -> Arrays:
    """Stands in for a network. The slot comes back so that clients can tell whose answer they got."""
    action = obs["image"][:, 0, :, 0].sum(-1, dtype=np.int32) % 6
    return {"action": action, "slot": obs["slot"]}


def serve_dreamfleet(address: str, envs: int) -> None:
    from dreamfleet.transport.batching import BatchServer

    server = BatchServer(address, name="actor")
    server.bind_batch("act", lambda batch, rows: policy(batch), max_rows=MAX_ROWS)
    server.start()


def connect_dreamfleet(address: str, envs: int) -> Step:
    from dreamfleet.transport.client import Client
    from dreamfleet.transport.codec import PreparedRequest

    obs = make_observation(envs)
    request = PreparedRequest("act", {key: (value.dtype, value.shape) for key, value in obs.items()})
    copies = [(request.arrays[key], value) for key, value in obs.items()]
    client = Client(address, name="env")
    client.wait_connected()

    def step(slot: int) -> Arrays:
        for target, value in copies:
            target[...] = value
        request.arrays["slot"][...] = slot
        return client.send(request).result()

    return step


def serve_portal(address: str, envs: int) -> None:
    import portal

    def handler(obs: Arrays) -> Arrays:
        if envs == 1:
            return policy(obs)
        rows = policy({key: value.reshape(-1, *value.shape[2:]) for key, value in obs.items()})
        return {key: value.reshape(-1, envs) for key, value in rows.items()}

    server = portal.BatchServer(int(address), logging=False)
    server.bind("act", handler, batch=PORTAL_BATCH)
    server.start(block=False)


def connect_portal(address: str, envs: int) -> Step:
    import portal

    obs = make_observation(envs)
    # Portal adds the batch axis itself: a single environment is sent without one.
    rows = obs if envs > 1 else {key: value[0] for key, value in obs.items()}
    client = portal.Client(int(address), logging=False)
    client.connect()

    def step(slot: int) -> Arrays:
        rows["slot"] = np.full_like(rows["slot"], slot)
        reply: Arrays = client.act(rows).result()
        return reply

    return step


SIDES = {"dreamfleet": (serve_dreamfleet, connect_dreamfleet), "portal": (serve_portal, connect_portal)}


def run_server(side: str, address: str, envs: int, pipe: Connection) -> None:
    SIDES[side][0](address, envs)
    pipe.send("ready")
    pipe.recv()  # until the end
    for child in psutil.Process().children(recursive=True):  # portal's batcher
        child.kill()
    os._exit(0)


def run_client(side: str, address: str, envs: int, index: int, counts: Any, pipe: Connection) -> None:
    """Steps until it is ended from outside, counting finished steps in shared memory."""
    step = SIDES[side][1](address, envs)
    pipe.send("ready")
    number = 0
    while True:
        slot = index * 1_000_000 + number % 1_000_000
        if (step(slot)["slot"] != slot).any():
            os._exit(3)
        number += 1
        counts[index] = number


def measure(side: str, clients: int, envs: int, seconds: float) -> dict[str, float]:
    """Steps/s and CPU microseconds per step of a server with its clients, over `seconds` after a warm-up."""
    context = mp.get_context("spawn")
    counts = context.RawArray("Q", clients)
    processes: list[Any] = []
    pipes: list[Connection] = []

    def start(target: Callable[..., None], *args: Any) -> None:
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=target, args=(*args, theirs), daemon=False))
        processes[-1].start()
        pipes.append(ours)

    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/actor" if side == "dreamfleet" else str(free_port())
        try:
            start(run_server, side, address, envs)
            expect_ready(pipes[0], side)
            for index in range(clients):
                start(run_client, side, address, envs, index, counts)
            for pipe in pipes[1:]:
                expect_ready(pipe, side)
            time.sleep(WARM_UP_S)
            before = sum(counts), cpu_seconds(processes), time.monotonic()
            time.sleep(seconds)
            after = sum(counts), cpu_seconds(processes), time.monotonic()
            if not all(process.is_alive() for process in processes):
                raise RuntimeError(f"{side}: a process ended early, or a client got the answer to another request")
        finally:
            end(processes, pipes)
    steps = (after[0] - before[0]) * envs
    if not steps:
        raise RuntimeError(f"{side} answered nothing within {seconds} s")
    return {"steps_per_s": steps / (after[2] - before[2]), "cpu_us_per_step": (after[1] - before[1]) / steps * 1e6}


def expect_ready(pipe: Connection, side: str) -> None:
    if not pipe.poll(START_TIMEOUT_S):
        raise TimeoutError(f"a process of {side} did not start within {START_TIMEOUT_S} s")
    pipe.recv()


def cpu_seconds(processes: list[Any]) -> float:
    """User and system time of the processes and their children so far."""
    roots = [psutil.Process(process.pid) for process in processes]
    family = [one for root in roots for one in (root, *root.children(recursive=True))]
    return sum(times.user + times.system for times in (one.cpu_times() for one in family))


def end(processes: list[Any], pipes: list[Connection]) -> None:
    for process in processes[1:]:
        process.kill()
    if pipes:
        pipes[0].send("end")
    for process in processes:
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def machine() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def print_table(report: dict[str, Any]) -> None:
    print(f"{report['machine']['platform']}, {report['machine']['cores']} cores, {report['clients']} clients")
    print(f"{'envs/message':>12}  {'side':<10}  {'steps/s':>10}  {'CPU us/step':>11}")
    for envs, row in report["envs_per_message"].items():
        for side in SIDES:
            print(f"{envs:>12}  {side:<10}  {row[side]['steps_per_s']:>10,.0f}  {row[side]['cpu_us_per_step']:>11.1f}")
        print(f"{envs:>12}  {'ratio':<10}  {row['speed_ratio']:>10.1f}  {row['cpu_ratio']:>11.1f}")


def compare(envs: int, clients: int, seconds: float, rounds: int) -> dict[str, Any]:
    """The best round of each side, all rounds, and how many times better ours is."""
    measured: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side, results in measured.items():
            results.append(measure(side, clients, envs, seconds))
    row: dict[str, Any] = {side: max(results, key=lambda r: r["steps_per_s"]) for side, results in measured.items()}
    row["speed_ratio"] = row["dreamfleet"]["steps_per_s"] / row["portal"]["steps_per_s"]
    row["cpu_ratio"] = row["portal"]["cpu_us_per_step"] / row["dreamfleet"]["cpu_us_per_step"]
    return {**row, "rounds": measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    if find_spec("portal") is None:
        raise SystemExit("portal is not installed, which this compares with: pip install 'dreamfleet[bench]'")
    # Portal's semaphores outlive its server, which has no way to end while clients wait for a full batch.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    report: dict[str, Any] = {"machine": machine(), "clients": options.clients, "envs_per_message": {}}
    for envs in ENVS_PER_MESSAGE:
        report["envs_per_message"][str(envs)] = compare(envs, options.clients, options.seconds, options.rounds)
    if options.json:
        print(json.dumps(report))
    else:
        print_table(report)


if __name__ == "__main__":
    main()
