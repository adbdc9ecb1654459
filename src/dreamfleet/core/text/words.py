"""Human-readable descriptions of waits. Code must decide by the names in `core.waits`, never by these texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dreamfleet.core.waits import LimiterState, Wait

WAIT_WORDS: Mapping[Wait, str] = {
    Wait.OBSERVATIONS: "observations",
    Wait.REPLAY_TO_ACCEPT_STEPS: "replay to accept steps",
    Wait.REPLAY_TO_COME_BACK: "replay to come back",
    Wait.LOGGER_TO_ACCEPT_STEPS: "logger to accept steps",
    Wait.REPLAY: "replay",
    Wait.LOGGER: "logger",
    Wait.REPLAY_TO_START: "replay to start",
    Wait.REPLAY_TO_SAMPLE: "replay to sample",
    Wait.REPLAY_TO_ACCEPT_LATENTS: "replay to accept latents",
    Wait.SNAPSHOT_TO_BE_CAPTURED: "snapshot to be captured",
    Wait.SNAPSHOT_TO_BE_WRITTEN: "snapshot to be written",
    Wait.ACTOR_TO_INSERT: "actor to insert",
    Wait.LEARNER_TO_SAMPLE: "learner to sample",
    Wait.ACTIONS: "actions",
    Wait.ACTOR_TO_ACCEPT_ENVIRONMENTS: "actor to accept environments",
    Wait.ACTOR_TO_HAVE_ROOM: "actor to have room",
    Wait.ENV_STEP: "in step",
    Wait.ENV_RESTART: "to restart",
    Wait.SUPERVISOR_TO_STOP: "the supervisor to stop it",
}


def wait_words(wait: Wait, env: str = "") -> str:
    """Return the description of a wait. `env` names the environment that causes it."""
    return f"{env} {WAIT_WORDS[wait]}".lstrip()


def limiter_words(state: LimiterState, missing: int, inserted: int) -> str:
    """Return what the limiter waits for, with the inserted steps and the missing steps or windows."""
    match state:
        case LimiterState.FIRST_UPDATE:
            return f"{inserted:,} of {inserted + missing:,} steps before the first update"
        case LimiterState.STEPS:
            return f"{missing:,} more steps to be inserted"
        case LimiterState.WINDOW:
            return "a stream long enough for one window"
        case LimiterState.SAMPLES:
            return f"{missing:,} more windows to be sampled"
    return "nothing"


def waits_status(current: Mapping[Wait, float], in_env: tuple[Wait, str, float] | None = None) -> dict[str, Any]:
    """Return the current waits, and optionally one of an environment, for a status.

    `waits` contains them by name, `waiting` as text for older readers.
    """
    found = [(wait, "", seconds) for wait, seconds in current.items()] + ([in_env] if in_env else [])
    return {
        "waiting": {wait_words(wait, env): seconds for wait, env, seconds in found},
        "waits": [{"wait": wait, "env": env, "seconds": seconds} for wait, env, seconds in found],
    }


def waited_status(totals: Mapping[Wait, float]) -> dict[str, dict[str, float]]:
    """Return the total seconds of each wait for a status: `waited_s` by name, `wait_s` by text."""
    return {
        "wait_s": {wait_words(wait): seconds for wait, seconds in totals.items()},
        "waited_s": {str(wait): seconds for wait, seconds in totals.items()},
    }
