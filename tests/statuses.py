"""A status as the supervisor writes it, for tests of what is drawn from one."""

from __future__ import annotations

from typing import Any


def make_run(**changes: Any) -> dict[str, Any]:
    return {
        "task": "catch",
        "agent": "dreamer tiny",
        "folder": "/runs/catch",
        "steps": 20_000,
        "duration": 0.0,
        "before": 0,
        "updates_before": 0,
        "envs": 32,
        "eval_envs": 0,
        "batch_steps": 1024,
        "train_ratio": 32.0,
        "seed": 0,
        "devices": "cpu in float32",
        "replay_size": 100_000,
        "replay_size_bytes": 0,
        **changes,
    }


def make_status(state: str = "running", **run: Any) -> dict[str, Any]:
    usage = {"cpu_percent": 50.0, "ram_gb": 0.25}
    worker = {"state": "ready", "status": {"restarts": 1, "waiting": {"actions": 0.1}, "usage": usage}}
    learner = {"updates": 78, "waiting": {"replay to sample": 12.0}, "usage": usage}
    logger = {
        "episodes": {"train": 250, "eval": 0},
        "mean_return": {"train": 3.25},
        "last_return": {"train": 4.0},
        "usage": usage,
    }
    replay = {
        "replay": {"items": 11_000, "ram_gb": 0.5, "disk_gb": 0.25},
        "limiter": {"waits_for": "4 more steps to be inserted"},
        "usage": usage,
    }
    return {
        "time": 1000.0,
        "state": state,
        "reason": "",
        "uptime_s": 100.0,
        "run": make_run(**run),
        "pace": {
            "step": 12_000,
            "updates": 78,
            "env_per_s": 80.0,
            "updates_per_s": 2.5,
            "waits": {"actor": {"observations": 0.25}, "learner": {"replay to sample": 0.6}, "envs": {"actions": 0.9}},
        },
        "roles": {
            "logger": {"state": "ready", "status": logger},
            "replay": {"state": "ready", "status": replay},
            "agent": {"state": "ready", "status": {"actor": {"step": 12_000, "waiting": {}}, "learner": learner}},
            **{f"env-{number}": worker for number in range(16)},
        },
    }
