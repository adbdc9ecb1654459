"""Writes the table of readings into a page: python -m dreamfleet.envs.document docs/environments.md"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from dreamfleet.envs.gym.readers import READINGS

BEGIN = "<!-- Made from dreamfleet.envs.gym.readers by `scripts/document`: change it there. -->"
END = "<!-- End of what is made. -->"


def document(page: str) -> str:
    """The page with the table of today between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {BEGIN!r} and {END!r}: put them where the table belongs")
    return "\n".join([f"{before}{BEGIN}\n", *table(), f"\n{END}{after}"])


def table() -> Iterator[str]:
    yield "| the first of these that a space is | is read as | the agent sees |\n|---|---|---|"
    for rule in READINGS:
        yield f"| {rule.spaces} | {rule.reading} | {rule.seen} |"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(document(path.read_text()))
