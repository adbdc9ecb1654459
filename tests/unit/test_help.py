"""Every command says in one line what it is for, and its help fits 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dreamfleet import cli


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


ALL = list(commands(typer.main.get_command(cli.app)))


def test_every_command_is_looked_at() -> None:
    assert {("train",), ("status",), ("plot",), ("role", "env"), ("replay", "info")} <= set(ALL)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_80_columns_and_tells_the_purpose_in_one_line(path: tuple[str, ...]) -> None:
    result = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(cli.app, [*path, "--help"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    filled = [line.strip() for line in lines if line.strip()]
    start = next(number for number, line in enumerate(filled) if line.startswith("Usage:"))
    box = next(number for number, line in enumerate(filled) if line.startswith("╭"))
    purpose = filled[start + 1 : box]
    assert len(purpose) == 1, f"the purpose takes {len(purpose)} lines"
    assert purpose[0].endswith(".")


@pytest.mark.parametrize("path", [path for path in ALL if path in ((), ("role",), ("replay",))], ids=" ".join)
def test_a_list_of_commands_has_one_line_for_each(path: tuple[str, ...]) -> None:
    output = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(cli.app, [*path, "--help"]).output
    listed = output.partition("─ Commands ─")[2].splitlines()[1:]
    rows = [line for line in listed if line.startswith("│")]
    inner = {inner[len(path)] for inner in ALL if len(inner) == len(path) + 1 and inner[: len(path)] == path}
    assert {row.strip("│ ").split()[0] for row in rows} == inner
    assert len(rows) == len(inner), f"one of these takes more than a line:\n{output}"
