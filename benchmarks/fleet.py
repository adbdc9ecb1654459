"""The whole fleet with a null agent: environment steps per second, and what each role spends on one.

    python benchmarks/fleet.py [--json] [--seconds 15] [--envs 16]

Runs `dreamfleet train` as a user would, with the random agent on the built-in environment (64x64x3 images) at train
ratio 1: every step goes from an environment through the actor into replay, and as many steps as are collected are
sampled and reach the learner. Measures by the counters in `status.json`, from the learner's first updates on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SAMPLE_EVERY_S = 0.25
START_LIMIT_S = 120.0
GOAL_STEPS_PER_S = 3000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of the measurement")
    parser.add_argument("--envs", type=int, default=16, help="training environments")
    parser.add_argument("--train-ratio", type=float, default=1.0, help="replayed steps per collected step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), options.envs, options.train_ratio, options.seconds)
    print(json.dumps(result) if options.json else table(result))


def measure(folder: Path, envs: int, train_ratio: float, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "dreamfleet", "train", "agent=random", "env=dummy", "replay.size=1e5"]
    command += [f"run.envs={envs}", "run.eval_envs=0", f"run.train_ratio={train_ratio}", "run.save_every=0"]
    fleet = subprocess.Popen([*command, "--run-dir", str(folder)], stderr=subprocess.PIPE, text=True)
    try:
        first = wait_for_status(folder, fleet, lambda status: updates(status) >= 5)
        until = first["time"] + seconds
        last = wait_for_status(folder, fleet, lambda status: status["time"] >= until, seconds + 10)
    finally:
        fleet.send_signal(signal.SIGINT)
        fleet.communicate(timeout=30)
    return compare(first, last, envs, train_ratio)


def wait_for_status(folder: Path, fleet: subprocess.Popen[str], ready: Any, limit_s: float = START_LIMIT_S) -> Any:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if fleet.poll() is not None:
            raise SystemExit(f"the fleet ended by itself:\n{fleet.communicate()[1]}")
        path = folder / "status.json"
        if path.exists() and ready(status := json.loads(path.read_text())):
            return status
        time.sleep(SAMPLE_EVERY_S)
    raise SystemExit(f"the fleet did not get there within {limit_s:g} s")


def updates(status: dict[str, Any]) -> int:
    agent = status["roles"]["agent"]["status"] or {}
    return int(agent.get("learner", {}).get("updates", 0))


def compare(first: dict[str, Any], last: dict[str, Any], envs: int, train_ratio: float) -> dict[str, Any]:
    """Role reports are up to a second old; each role's figures are set against the time of its own reports."""
    steps = rate(first, last, "agent", lambda status: status["actor"]["step"])
    trained = rate(first, last, "agent", lambda status: status["learner"]["updates"]) * 16 * 64
    cpu: dict[str, float] = {}
    for name in last["roles"]:
        usage = (lambda status: status["actor"]["usage"]) if name == "agent" else (lambda status: status["usage"])
        kind = str(last["roles"][name]["kind"])
        cpu[kind] = cpu.get(kind, 0.0) + 1e6 * rate(first, last, name, lambda s, u=usage: u(s)["cpu_total_s"]) / steps
    return {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "envs": envs,
        "train_ratio": train_ratio,
        "env_steps_per_s": round(steps, 1),
        "goal_env_steps_per_s": GOAL_STEPS_PER_S,
        "ratio_to_goal": round(steps / GOAL_STEPS_PER_S, 2),
        "trained_steps_per_s": round(trained, 1),
        "achieved_train_ratio": round(trained / steps, 3),
        "cpu_us_per_step": {name: round(value, 1) for name, value in sorted(cpu.items())},
        "cpu_us_per_step_total": round(sum(cpu.values()), 1),
        "rows_per_policy_call": round(last["roles"]["agent"]["status"]["actor"]["server"]["rows_per_batch"], 2),
    }


def rate(first: dict[str, Any], last: dict[str, Any], role: str, read: Any) -> float:
    def when(status: dict[str, Any]) -> float:
        return float(status["time"] - status["roles"][role]["report_age_s"])

    amount = read(last["roles"][role]["status"]) - read(first["roles"][role]["status"])
    return float(amount / max(1e-9, when(last) - when(first)))


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['envs']} environments, train ratio {result['train_ratio']:g}, {result['machine']['cores']} cores"
    ]
    for key in (
        "env_steps_per_s",
        "ratio_to_goal",
        "trained_steps_per_s",
        "achieved_train_ratio",
        "rows_per_policy_call",
    ):
        lines.append(f"  {key:24} {result[key]:>10}")
    lines.append("  CPU per env step, µs")
    lines += [f"    {name:22} {value:>10}" for name, value in result["cpu_us_per_step"].items()]
    lines.append(f"    {'total':22} {result['cpu_us_per_step_total']:>10}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
