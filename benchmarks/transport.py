"""Observations through the batch server: ours against `portal`, in the same run on the same machine.

Client processes send an observation (64x64x3 uint8 image and scalars) and wait for the action, like environments do. The
handler is a small NumPy policy. Every reply is checked to be the answer to its request.

    python benchmarks/transport.py [--json] [--seconds 8] [--clients 8]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

IMAGE = (64, 64, 3)
BATCH = 4  # rows per batch for portal, which waits for exactly this many
MAX_ROWS = 64

Arrays = dict[str, np.ndarray]


def observation(envs: int) -> Arrays:
    """A batch of observations, one row per environment."""
    return {
        "image": np.random.default_rng(0).integers(0, 255, (envs, *IMAGE), np.uint8),
        "reward": np.zeros(envs, np.float32),
        "is_first": np.zeros(envs, bool),
        "is_last": np.zeros(envs, bool),
        "is_terminal": np.zeros(envs, bool),
        "slot": np.zeros(envs, np.int32),
    }


def policy(obs: Arrays) -> Arrays:
    """A stand-in for a network: touches the observation, returns an action, and echoes the slot for the check."""
    pixels = obs["image"].reshape(len(obs["slot"]), -1)[:, :8].astype(np.float32)
    action = pixels.sum(-1).astype(np.int32) % 6
    return {"action": action, "slot": np.asarray(obs["slot"])}


def fleet_server(address: str, ready: Connection, envs: int) -> Callable[[], None]:
    from dreamfleet.transport import BatchServer

    server = BatchServer(address, name="actor")
    server.bind_batch("act", lambda batch, rows: policy(batch), max_rows=MAX_ROWS)
    server.start()
    return server.close


def fleet_client(address: str, index: int, envs: int) -> Callable[[int], Arrays]:
    from dreamfleet.transport import Client, Outgoing

    obs = observation(envs)
    client = Client(address, name=f"env-{index}")
    client.wait_connected()
    request = Outgoing("act", {key: (value.dtype, value.shape) for key, value in obs.items()})

    def step(number: int) -> Arrays:
        obs["slot"][:] = index * 1000 + number % 1000
        for key, value in obs.items():
            request.arrays[key][:] = value
        return client.send(request).result()

    return step


def portal_server(address: str, ready: Connection, envs: int) -> Callable[[], None]:
    import portal

    server = portal.BatchServer(int(address), logging=False)
    # With several environments per message, portal batches messages: the policy sees them flattened.
    flat = policy if envs == 1 else lambda obs: unflatten(policy(flatten(obs)), envs)
    server.bind("act", flat, batch=BATCH)
    server.start(block=False)
    return lambda: server.close(timeout=1)


def portal_client(address: str, index: int, envs: int) -> Callable[[int], Arrays]:
    import portal

    obs = observation(envs)
    client = portal.Client(int(address), logging=False)
    client.connect()

    def step(number: int) -> Arrays:
        obs["slot"][:] = index * 1000 + number % 1000
        rows = obs if envs > 1 else {key: value[0] for key, value in obs.items()}
        result: Arrays = client.act(rows).result()
        return result

    return step


def flatten(obs: Arrays) -> Arrays:
    return {key: value.reshape(-1, *value.shape[2:]) for key, value in obs.items()}


def unflatten(result: Arrays, envs: int) -> Arrays:
    return {key: value.reshape(-1, envs, *value.shape[1:]) for key, value in result.items()}


def cpu_seconds() -> float:
    """User and system time of this process and of its children that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def run_server(make: Callable[..., Callable[[], None]], address: str, envs: int, pipe: Connection) -> None:
    close = make(address, pipe, envs)
    pipe.send(children_cpu())
    pipe.recv()  # measurement over
    pipe.send(children_cpu())
    pipe.recv()  # clients gone
    close()


def children_cpu() -> float:
    """CPU time so far of this process and its living descendants: portal's server has a batcher process."""
    import psutil

    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def run_client(
    make: Callable[..., Callable[[int], Arrays]], address: str, index: int, envs: int, seconds: float, pipe: Connection
) -> None:
    step = make(address, index, envs)
    for number in range(20):
        step(number)
    pipe.send("ready")
    pipe.recv()
    start_cpu = cpu_seconds()
    end = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < end:
        reply = step(steps)
        if np.any(reply["slot"] != index * 1000 + steps % 1000):
            raise AssertionError(f"client {index} got the answer to another request: {reply['slot']}")
        steps += 1
    pipe.send((steps * envs, cpu_seconds() - start_cpu))
    if make is portal_client:
        # Portal waits for full batches: the others' last calls would hang without company.
        keep_company(step, pipe)
    pipe.recv()
    os._exit(0)


def keep_company(step: Callable[[int], Arrays], pipe: Connection) -> None:
    while not pipe.poll():
        step(0)


def measure(kind: str, clients: int, envs: int, seconds: float) -> dict[str, float]:
    """Runs one server and its clients for `seconds` and returns steps/s and CPU microseconds per step."""
    make_server, make_client = (fleet_server, fleet_client) if kind == "dreamfleet" else (portal_server, portal_client)
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/actor" if kind == "dreamfleet" else str(free_port())
        server_pipe, server_end = context.Pipe()
        server = context.Process(target=run_server, args=(make_server, address, envs, server_end))
        server.start()
        server_cpu = receive(server_pipe, server)
        workers = []
        for index in range(clients):
            pipe, end = context.Pipe()
            args = (make_client, address, index, envs, seconds, end)
            workers.append((context.Process(target=run_client, args=args, daemon=True), pipe))
            workers[-1][0].start()
        for process, pipe in workers:
            receive(pipe, process)
        server_pipe_start = server_cpu
        started = time.monotonic()
        for _, pipe in workers:
            pipe.send("go")
        results = [receive(pipe, process) for process, pipe in workers]
        elapsed = time.monotonic() - started
        server_pipe.send("measured")
        server_cpu = receive(server_pipe, server) - server_pipe_start
        for process, pipe in workers:
            pipe.send("end")
        for process, _ in workers:
            process.join(5)
            if process.is_alive():
                process.kill()
        server_pipe.send("end")
        server.join(10)
        if server.is_alive():
            server.kill()
    steps = sum(result[0] for result in results)
    cpu = server_cpu + sum(result[1] for result in results)
    return {"steps_per_s": steps / elapsed, "cpu_us_per_step": cpu / steps * 1e6}


def receive(pipe: Connection, process: Any) -> Any:
    if not pipe.poll(60):
        raise TimeoutError(f"{process.name} did not answer")
    return pipe.recv()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each of the four measurements")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--only", choices=["dreamfleet", "portal"], help="measure one side only")
    options = parser.parse_args()
    kinds = [options.only] if options.only else ["dreamfleet", "portal"]
    results: dict[str, Any] = {}
    for envs in (1, 8):
        row = {kind: measure(kind, options.clients, envs, options.seconds) for kind in kinds}
        results[f"envs_per_message_{envs}"] = row
    print(json.dumps(results))


if __name__ == "__main__":
    main()
