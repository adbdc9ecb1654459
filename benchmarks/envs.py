"""Environments: steps per second of each installed suite, alone and through the fleet, and what the worker adds.

    python benchmarks/envs.py [--json] [--seconds 5] [--rounds 10] [--suites gym dummy ...]

Alone is a bare loop over one environment with random actions. Through the fleet is `dreamfleet train` with the random
agent, as a user would run it, by the counters in `status.json`.

The worker's overhead is the CPU time per step of a worker with 8 environments of 64x64x3 observations, all its threads
together, less that of a bare loop over the same environments in the same process. The environments fill an image with
one colour and do nothing else. An actor with the random agent answers from another process. Both sides are measured in
turn, several times, and the best round of each counts: whatever else the machine does can only slow a round down.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

ENVS_PER_WORKER = 8
ENDLESS = {"is_terminal": np.False_}
GOAL_US = 15.0
FLEET_ENVS = 8
WARM_UP_S = 1.0
START_TIMEOUT_S = 60.0
SAMPLE_EVERY_S = 0.25
# One task of every suite; a suite that is not installed is named with what it needs.
TASKS = {
    "dummy": "dummy",
    "catch": "catch",
    "bandit": "bandit",
    "memory": "memory",
    "gym": "gym:CartPole-v1",
    "atari": "atari:pong",
    "atari100k": "atari100k:pong",
    "crafter": "crafter:reward",
    "dmc": "dmc:walker_walk",
    "minigrid": "minigrid:MiniGrid-Empty-5x5-v0",
    "mujoco": "mujoco:HalfCheetah-v5",
    "procgen": "procgen:coinrun",
    "memory_maze": "memory_maze:9x9",
    "dmlab": "dmlab:rooms_collect_good_objects_train",
    "minecraft": "minecraft:diamond",
}


class Trivial:
    """Draws its image in one colour, as cheaply as an image can be drawn, and does nothing else."""

    def __init__(self, length: int = 1000) -> None:
        from dreamfleet.core.spaces import Space

        self._length = length
        self._step = 0
        self._image = np.zeros((64, 64, 3), np.uint8)
        self._first, self._other, self._last = (
            {"image": self._image, "reward": np.float32(1 - first), "is_first": first, "is_last": last, **ENDLESS}
            for first, last in ((np.True_, np.False_), (np.False_, np.False_), (np.False_, np.True_))
        )
        self.obs_space = {
            "image": Space(np.uint8, (64, 64, 3)),
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        self.act_space = {"action": Space(np.int32, (), 0, 6), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        self._step = 0 if action["reset"] else self._step + 1
        self._image.fill(self._step & 255)
        if action["reset"]:
            return self._first
        return self._last if self._step >= self._length else self._other

    def close(self) -> None:
        pass


class Nowhere:
    """Stands for replay and the logger behind the actor, which take everything at once."""

    full = False

    def call(self, method: str, arrays: Mapping[str, np.ndarray]) -> Nowhere:
        return self

    def result(self) -> dict[str, np.ndarray]:
        return {}


def serve_actor(folder: str, pipe: Connection) -> None:
    from dreamfleet.agent.random_agent import RandomAgent
    from dreamfleet.core.context import RoleContext
    from dreamfleet.roles.actor import ActorRole
    from dreamfleet.transport.batching import BatchServer

    args = worker_args(folder)
    nowhere: Any = Nowhere()
    agent = RandomAgent(Trivial().act_space)
    actor = ActorRole(agent, args, nowhere, nowhere, RoleContext("actor"), lambda error: os._exit(3))
    server = BatchServer(args.actor_addr, name="actor")
    actor.serve(server)
    server.start()
    pipe.send("ready")
    pipe.recv()  # until the end
    server.close()


def worker_args(folder: str) -> Any:
    from dreamfleet.config.args import FleetArgs

    return FleetArgs(logdir=folder, actor_addr=f"ipc://{folder}/actor", envs=2 * ENVS_PER_WORKER, log_every=0)


def run_worker(folder: str, seconds: float, rounds: int, pipe: Connection) -> None:
    """Measures a bare loop and a worker in turn, in this one process."""
    pipe.send([(bare_loop(seconds), through_worker(folder, seconds)) for _ in range(rounds)])


def bare_loop(seconds: float) -> float:
    """CPU microseconds per step."""
    envs = [Trivial() for _ in range(ENVS_PER_WORKER)]
    reset = [np.bool_(True)] * len(envs)
    action = np.int32(1)
    steps = 0
    start, until = time.process_time(), time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(100):
            for row, env in enumerate(envs):
                reset[row] = env.step({"action": action, "reset": reset[row]})["is_last"]
        steps += 100 * len(envs)
    return (time.process_time() - start) / steps * 1e6


def through_worker(folder: str, seconds: float) -> dict[str, float]:
    from dreamfleet.core.context import RoleContext
    from dreamfleet.roles.env_worker.role import make_worker

    context = RoleContext("env-0")
    worker = make_worker(lambda index: Trivial(), range(ENVS_PER_WORKER), "train", worker_args(folder))
    thread = threading.Thread(target=worker.run, args=(context,))
    thread.start()
    time.sleep(WARM_UP_S)
    before = worker.steps, time.process_time(), time.monotonic()
    time.sleep(seconds)
    steps, cpu_s, elapsed_s = worker.steps - before[0], time.process_time() - before[1], time.monotonic() - before[2]
    context.stop.set()
    thread.join(START_TIMEOUT_S)
    if not steps:
        raise RuntimeError(f"the worker made no step within {seconds} s")
    return {"cpu_us_per_step": cpu_s / steps * 1e6, "steps_per_s": steps / elapsed_s}


def measure_overhead(seconds: float, rounds: int) -> dict[str, Any]:
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        actor_pipe, theirs = context.Pipe()
        actor = context.Process(target=serve_actor, args=(folder, theirs), daemon=True)
        actor.start()
        worker_pipe, others = context.Pipe()
        worker = context.Process(target=run_worker, args=(folder, seconds, rounds, others), daemon=True)
        try:
            receive(actor_pipe, START_TIMEOUT_S)
            worker.start()
            measured = receive(worker_pipe, START_TIMEOUT_S + rounds * (2 * seconds + WARM_UP_S + 5))
        finally:
            actor_pipe.send("end")
            for process in (actor, worker):
                process.join(10)
                if process.is_alive():
                    process.kill()
    bare = min(one for one, _ in measured)
    best = min((one for _, one in measured), key=lambda one: one["cpu_us_per_step"])
    overhead = best["cpu_us_per_step"] - bare
    return {
        "envs": ENVS_PER_WORKER,
        "bare_cpu_us_per_step": round(bare, 2),
        "worker_cpu_us_per_step": round(best["cpu_us_per_step"], 2),
        "overhead_us_per_step": round(overhead, 2),
        "goal_us_per_step": GOAL_US,
        "ratio_to_goal": round(overhead / GOAL_US, 2),
        "worker_steps_per_s": round(best["steps_per_s"], 1),
        "rounds": [{"bare_cpu_us_per_step": one, **other} for one, other in measured],
    }


def receive(pipe: Connection, timeout_s: float) -> Any:
    if not pipe.poll(timeout_s):
        raise TimeoutError(f"a process did not answer within {timeout_s:g} s")
    return pipe.recv()


def measure_suites(names: list[str], seconds: float) -> dict[str, Any]:
    from dreamfleet.envs.catalog import SUITES

    results: dict[str, Any] = {}
    for name in names:
        missing = SUITES[name].missing()
        if missing:
            results[name] = {"env": TASKS[name], "missing": missing, "install": SUITES[name].install}
            continue
        alone = measure_alone(TASKS[name], seconds)
        fleet = measure_fleet(TASKS[name], seconds)
        ratio = round(fleet["steps_per_s"] / alone["steps_per_s"], 3)
        results[name] = {"env": TASKS[name], "alone": alone, "fleet": fleet, "ratio": ratio}
    return results


def measure_alone(env: str, seconds: float) -> dict[str, float]:
    """In a process of its own, which takes along whatever a simulator leaves behind."""
    context = mp.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=step_alone, args=(env, seconds, theirs), daemon=True)
    process.start()
    try:
        rate: float = receive(pipe, START_TIMEOUT_S + 2 * seconds)
    finally:
        process.join(10)
        process.kill()
    return {"steps_per_s": round(rate, 1)}


def step_alone(name: str, seconds: float, pipe: Connection) -> None:
    from dreamfleet.envs.registry import make_env

    env: Any = make_env(name, 0, 0, {})
    rng = np.random.default_rng(0)
    spaces = {key: space for key, space in env.act_space.items() if key != "reset"}
    # Drawing actions is no part of it.
    actions = [{key: space.sample(rng) for key, space in spaces.items()} for _ in range(256)]
    reset = np.bool_(True)
    steps = 0
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        for action in actions:
            reset = env.step({**action, "reset": reset})["is_last"]
        steps += len(actions)
    pipe.send(steps / (time.monotonic() - start))
    env.close()


def measure_fleet(env: str, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dreamfleet", "train", "agent=random", f"env={env}", "replay.size=5e4"]
        command += [f"run.envs={FLEET_ENVS}", "run.eval_envs=0", "run.train_ratio=1", "run.save_every=0"]
        fleet = subprocess.Popen([*command, "--run-dir", folder], stderr=subprocess.PIPE, text=True)
        try:
            first = wait_for_steps(Path(folder), fleet, lambda actor: actor.get("step", 0) > 0)
            until = first[0] + seconds
            last = wait_for_steps(Path(folder), fleet, lambda actor: actor["time"] >= until)
        finally:
            fleet.send_signal(signal.SIGINT)
            fleet.communicate(timeout=60)
    return {"envs": FLEET_ENVS, "steps_per_s": round((last[1] - first[1]) / (last[0] - first[0]), 1)}


def wait_for_steps(folder: Path, fleet: subprocess.Popen[str], ready: Any) -> tuple[float, int]:
    """When the actor's last report was made, and its step by then."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if fleet.poll() is not None:
            raise SystemExit(f"the fleet ended by itself:\n{fleet.communicate()[1]}")
        path = folder / "status.json"
        if path.exists():
            status = json.loads(path.read_text())
            role = status["roles"].get("agent", {})
            actor = (role.get("status") or {}).get("actor", {})
            when = status["time"] - (role.get("report_age_s") or 0.0)
            if actor and ready({**actor, "time": when}):
                return when, actor["step"]
        time.sleep(SAMPLE_EVERY_S)
    raise SystemExit(f"the fleet did not get there within {START_TIMEOUT_S:g} s")


def machine() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def table(report: dict[str, Any]) -> str:
    machine, overhead = report["machine"], report["overhead"]
    lines = [f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}"]
    lines.append(f"CPU per step, {overhead['envs']} environments of 64x64x3 in one worker, best of {report['rounds']}")
    for key in ("bare_cpu_us_per_step", "worker_cpu_us_per_step", "overhead_us_per_step", "ratio_to_goal"):
        lines.append(f"  {key:24} {overhead[key]:>10}")
    lines.append(f"{'steps/s':32} {'alone':>10} {f'fleet of {FLEET_ENVS}':>12} {'ratio':>8}")
    for row in report["suites"].values():
        if "missing" in row:
            lines.append(f"  {row['env']:30} not installed: {row['install']}")
        else:
            alone, fleet = row["alone"]["steps_per_s"], row["fleet"]["steps_per_s"]
            lines.append(f"  {row['env']:30} {alone:>10,.0f} {fleet:>12,.0f} {row['ratio']:>8.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement of a suite")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of one second for the worker's overhead")
    parser.add_argument("--suites", nargs="*", choices=TASKS, default=list(TASKS), help="which suites; by default all")
    options = parser.parse_args()
    report = {"machine": machine(), "rounds": options.rounds}
    report["overhead"] = measure_overhead(1.0, options.rounds)
    report["suites"] = measure_suites(options.suites, options.seconds)
    print(json.dumps(report) if options.json else table(report))


if __name__ == "__main__":
    main()
