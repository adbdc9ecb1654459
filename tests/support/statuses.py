"""A status as the supervisor writes it, for tests of what is drawn from one."""

from __future__ import annotations

from typing import Any

from dreamfleet.runs.status import RunStatus


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


def waits(wait: str, seconds: float) -> dict[str, Any]:
    """One wait in progress, by its name and in words."""
    words = wait.replace("_", " ")
    return {"waiting": {words: seconds}, "waits": [{"wait": wait, "env": "", "seconds": seconds}]}


def limiter(state: str, missing: int = 0, inserts: int = 0) -> dict[str, Any]:
    return {"state": state, "missing": missing, "inserts": inserts}


def parse(status: dict[str, Any]) -> RunStatus:
    return RunStatus.model_validate(status)


def make_status(state: str = "running", **run: Any) -> dict[str, Any]:
    usage = {"cpu_percent": 50.0, "ram_gb": 0.25}
    worker = {"kind": "env", "state": "ready", "status": {"restarts": 1, "usage": usage, **waits("actions", 0.1)}}
    learner = {"updates": 78, "usage": usage, **waits("replay_to_sample", 12.0)}
    logger = {
        "episodes": {"train": 250, "eval": 0},
        "mean_return": {"train": 3.25},
        "last_return": {"train": 4.0},
        "usage": usage,
    }
    replay = {
        "replay": {"items": 11_000, "ram_gb": 0.5, "disk_gb": 0.25},
        "limiter": {"state": "steps", "missing": 4, "inserts": 12_000, "waits_for": "4 more steps to be inserted"},
        "usage": usage,
    }
    return {
        "format": 1,
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
            "shares": {"actor": {"observations": 0.25}, "learner": {"replay_to_sample": 0.6}, "env": {"actions": 0.9}},
        },
        "roles": {
            "logger": {"kind": "logger", "state": "ready", "status": logger},
            "replay": {"kind": "replay", "state": "ready", "status": replay},
            "agent": {
                "kind": "agent",
                "state": "ready",
                "status": {"actor": {"step": 12_000, "waiting": {}, "waits": []}, "learner": learner},
            },
            **{f"env-{number}": worker for number in range(16)},
        },
    }
