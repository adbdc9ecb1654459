"""Reads the commands and files out of the documents."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\.venv/bin/)?dreamfleet (.*)$")


@dataclass
class Document:
    """Code blocks that begin with a comment that names them are files; commands are without the program's name."""

    commands: list[list[str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)


def read_document(path: Path) -> Document:
    found = Document()
    for language, text in FENCE.findall(path.read_text(encoding="utf-8")):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            if name:
                found.files[name[1]] = text
            else:
                found.scripts.append(text)
            continue
        for line in text.replace("\\\n", " ").splitlines():
            command = COMMAND.match(line)
            if command:
                found.commands.append(shlex.split(command[1], comments=True))
    return found


def documents() -> list[str]:
    """Those with commands, by their path in the repository."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in paths if read_document(path).commands]
