"""What a user does to run a role on another machine."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_invitation(run: Path, elsewhere: Path) -> Path:
    """Copies what a role needs there; returns the fleet file."""
    elsewhere.mkdir(exist_ok=True)
    shutil.copytree(run / "keys", elsewhere / "keys", dirs_exist_ok=True)
    return Path(shutil.copy(run / "fleet.json", elsewhere))
