"""Writes a configuration as YAML for people: with where each value comes from, or with what each key means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dreamfleet.config.draft import origin_of
from dreamfleet.config.keys import walk
from dreamfleet.config.load import Resolved
from dreamfleet.config.schema import Config
from dreamfleet.config.syntax import dump_inline

COLUMNS = 80
REMARKS = 46  # column where they begin, unless a value reaches further


class Line(NamedTuple):
    text: str
    key: str
    is_group: bool


def show_origins(resolved: Resolved) -> str:
    """Every value, and whether it is a default, a preset's, an override or from the run folder."""
    lines: list[str] = []
    for line in _lines(resolved.config.model_dump()):
        remark = "" if line.is_group else f"# {origin_of(resolved.origins, line.key)}"
        beside = f"{line.text:{REMARKS - 2}}  {remark}".rstrip()
        if len(beside) <= COLUMNS:
            lines.append(beside)
        else:
            indent = " " * (len(line.text) - len(line.text.lstrip()))
            lines += [indent + remark, line.text]
    return "\n".join(lines)


def show_defaults() -> str:
    """Every default under its meaning: the text of `presets/defaults.yaml`."""
    meanings = {key: field.description for key, field in walk(Config)}
    lines = ["# Made by `python -m dreamfleet.config.document defaults` from config/schema.py: change it there."]
    for line in _lines(Config().model_dump()):
        indent = " " * (len(line.text) - len(line.text.lstrip()))
        lines += [f"{indent}# {meanings[line.key]}", line.text]
    return "\n".join(lines)


def _lines(values: Mapping[str, Any], prefix: str = "", indent: str = "") -> Iterator[Line]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield Line(f"{indent}{dump_inline(name)}:", key, True)
            yield from _lines(value, f"{key}.", f"{indent}  ")
        else:
            yield Line(f"{indent}{dump_inline(name)}: {dump_inline(value)}", key, False)
