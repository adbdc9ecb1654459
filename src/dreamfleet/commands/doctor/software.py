"""Python itself, and the suites of environments that are installed."""

from __future__ import annotations

import platform
import sys

from dreamfleet.commands.doctor.findings import NOTE, OK, PROBLEM, Finding

OLDEST_PYTHON = (3, 11)


def python() -> list[Finding]:
    return [python_finding(sys.version_info[:2])]


def python_finding(version: tuple[int, ...]) -> Finding:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if version < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return Finding("Python", PROBLEM, text, f"install Python {oldest} or newer")
    if platform.system() != "Linux":
        return Finding("Python", NOTE, text, "only Linux is tested")
    return Finding("Python", OK, text)


def suites() -> list[Finding]:
    from dreamfleet.envs.catalog import SUITES

    lacking = {name: suite for name, suite in SUITES.items() if suite.missing()}
    there = ", ".join(name for name in SUITES if name not in lacking)
    return [
        Finding("suites", OK, there),
        *(Finding("", NOTE, f"{name} is not installed", suite.install) for name, suite in lacking.items()),
    ]
