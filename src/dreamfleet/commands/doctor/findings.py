"""One finding about the machine, and how all of them are shown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

OK, NOTE, PROBLEM = "ok", "note", "problem"
WIDTH = 80


@dataclass(frozen=True)
class Finding:
    """`problem`: training stops there. `note`: it goes on, but slower, or without something. `fix` says what to do."""

    item: str
    level: str
    text: str
    fix: str = ""


def stops_training(findings: Sequence[Finding]) -> bool:
    return any(finding.level == PROBLEM for finding in findings)


def findings_json(findings: Sequence[Finding]) -> dict[str, Any]:
    return {"ok": not stops_training(findings), "findings": [asdict(finding) for finding in findings]}


def findings_text(findings: Sequence[Finding]) -> str:
    lines = [line for finding in findings for line in _lines(finding)]
    return "\n".join([*lines, "", _summary(findings)])


def _lines(finding: Finding) -> list[str]:
    start = f"{finding.level:<8} {finding.item:<14} "
    indent = " " * len(start)
    lines = textwrap.wrap(start + finding.text, WIDTH, subsequent_indent=indent)
    if finding.fix:
        # A command stays whole: whoever copies it must not join its pieces.
        wrapped = textwrap.wrap(finding.fix, WIDTH - len(indent) - 2, break_long_words=False, break_on_hyphens=False)
        lines += [f"{indent}{'> ' if number == 0 else '  '}{line}" for number, line in enumerate(wrapped)]
    return lines


def _summary(findings: Sequence[Finding]) -> str:
    problems = sum(finding.level == PROBLEM for finding in findings)
    if problems:
        return f"{problems} problem{'s' * (problems > 1)} would stop training: do what the lines with > say."
    return "Nothing here stops training."
