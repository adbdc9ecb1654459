"""The walk of one step in docs/architecture.md names files that exist, few enough to read in one go."""

from __future__ import annotations

import re

from support.documents import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "dreamfleet"
MAX_FILES = 25


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def paths(text: str) -> list[str]:
    """Every Python file with its folder, in order, each once."""
    return list(dict.fromkeys(re.findall(r"`([\w/]+/\w+\.py)`", text)))


def test_the_walk_of_a_step_names_few_files_in_order():
    walk = section("One step, file by file")
    numbered = re.findall(r"^\d+\. `([\w/]+\.py)`", walk, re.MULTILINE)
    assert 0 < len(numbered) <= MAX_FILES
    assert paths(walk) == numbered


def test_every_file_on_the_page_exists():
    assert [path for path in paths(PAGE) if not (SOURCE / path).is_file()] == []
