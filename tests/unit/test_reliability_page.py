"""Commands of docs/reliability.md name files that there are, and choose tests that pytest finds."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from support.documents import ROOT

TEXT = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"`((?:scripts/test|python) .*?)`", TEXT)
UNMARKED = "not slow and not thirdparty"  # as in scripts/test


def paths(command: str) -> list[str]:
    program, *words = command.split()
    return [word for word in (words if program == "scripts/test" else words[:1]) if "/" in word]


def option(command: str, name: str, default: str) -> str:
    words = command.split()
    return words[words.index(name) + 1] if name in words else default


def collected(files: list[str], marked: str) -> list[str]:
    pytest_ = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marked]
    found = subprocess.run([*pytest_, *files], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_what_there_is(command: str) -> None:
    assert paths(command)
    assert all((ROOT / path).exists() for path in paths(command))


@pytest.mark.parametrize("marked", [UNMARKED, "slow"])
def test_every_path_of_a_command_has_a_test_that_it_chooses(marked: str) -> None:
    tests = [command for command in COMMANDS if command.startswith("scripts/test")]
    commands = [command for command in tests if option(command, "-m", UNMARKED) == marked]
    assert commands
    names = collected(sorted({path for command in commands for path in paths(command)}), marked)
    for command in commands:
        chosen = option(command, "-k", "")
        for path in paths(command):
            found = [name for name in names if name.startswith(path) and chosen in name.partition("::")[2]]
            assert found, f"`{command}` chooses no test of {path}"
