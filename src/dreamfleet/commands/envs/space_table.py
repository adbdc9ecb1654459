"""`check-env --spaces`: how the observations of an environment are read, and the rules by which they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from dreamfleet.config.load import parse_overrides
from dreamfleet.launch.agents import why_unsuitable
from dreamfleet.launch.env_probe import ask_spaces

HEADER = ("observation", "declares", "is read as", "since it is", "env.read may say")


def read_env(env: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Makes the environment and takes no step."""
    from dreamfleet.envs.gym.readers import READINGS

    config = parse_overrides([f"env={env.removeprefix('env=')}", *overrides])
    spaces = ask_spaces(config, config.run.start_timeout_s)
    problem = why_unsuitable(config, spaces.obs, spaces.act)
    return {
        "env": config.env.name,
        "ok": problem is None,
        "readings": dict(spaces.readings),
        "notes": list(spaces.notes),
        "problem": problem,
        "rules": [{"spaces": rule.spaces, "reading": rule.reading, "seen": rule.seen} for rule in READINGS],
    }


def reading_table(readings: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(*HEADER, box=None, pad_edge=False, header_style="bold")
    for key, reading in readings.items():
        others = ", ".join(reading["others"]) or "-"
        since = "said by env.read" if reading["by"] == "env.read" else reading["by"]
        table.add_row(*map(escape, (key, _one_line(reading["declared"]), _words(reading), since, others)))
    return table


def rule_table(rules: Sequence[Mapping[str, str]]) -> Table:
    table = Table("the first of these spaces", "is read as", "the agent sees", box=None, pad_edge=False)
    for rule in rules:
        table.add_row(*(escape(rule[part].replace("`", "")) for part in ("spaces", "reading", "seen")))
    return table


def summary(readings: Mapping[str, Mapping[str, Any]]) -> str:
    """One line: which observations are read as what, and how to choose another reading."""
    by_kind: dict[str, list[str]] = {}
    for key, reading in readings.items():
        by_kind.setdefault(reading["reading"], []).append(key)
    text = "; ".join(f"{', '.join(keys)} as {kind}" for kind, keys in by_kind.items())
    choices = [(key, reading["others"][-1]) for key, reading in readings.items() if reading["others"]]
    example = f", env.read={{{choices[0][0]}: {choices[0][1]}}} reads one otherwise" if choices else ""
    return f"{text}: --spaces says why{example}"


def _words(reading: Mapping[str, Any]) -> str:
    if reading["reading"] == "numbers":
        count = math.prod(reading["shape"])
        return f"{count:,} numbers" if count > 1 else "a number"
    return "image" if reading["reading"] == "image" else f"classes, {reading['classes']:,} in all"


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:59]}…"
