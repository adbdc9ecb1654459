"""Commands of docs/reliability.md name files and tests that there are."""

from __future__ import annotations

import re

import pytest

from documents import ROOT

COMMANDS = re.findall(
    r"`((?:scripts/test|python) .*?)`", (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_what_there_is(command: str) -> None:
    program, *words = command.split()
    chosen = words.pop() if "-k" in words else "test_"
    paths = [ROOT / word for word in (words if program == "scripts/test" else words[:1]) if "/" in word]
    assert paths
    for path in paths:
        files = path.glob("test_*.py") if path.is_dir() else [path]
        source = "".join(file.read_text(encoding="utf-8") for file in files)
        assert program == "python" or chosen in source, f"{path} has no test {chosen}"
