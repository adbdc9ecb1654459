"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RUN_DIR = typer.Option("--run-dir", help="Folder of the run: created, or continued if it holds one.")
Words = Annotated[list[str] | None, typer.Argument(metavar="[PRESET]... [KEY=VALUE]...", help="Configuration.")]
Run = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Fleet = Annotated[Path, typer.Option("--fleet", help="The run's fleet.json, with the key folder beside it.")]
