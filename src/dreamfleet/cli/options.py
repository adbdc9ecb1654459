"""Arguments and options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RUN_DIR = typer.Option("--run-dir", help="Run folder. A new run creates it, an existing run is resumed.")
Words = Annotated[list[str] | None, typer.Argument(metavar="[PRESET]... [KEY=VALUE]...", help="Presets and overrides.")]
Run = Annotated[Path, typer.Argument(metavar="DIR", help="Run folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Fleet = Annotated[Path, typer.Option("--fleet", help="The run's fleet.json, next to the folder with the keys.")]
