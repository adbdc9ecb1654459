"""Runs a script in a process of its own whose files may only grow so large, as on a disk that fills up.

The script finds `folder`, the folder it may write to, and `room(size)`, which sets the bytes a file may have;
`room(hard)` ends the limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = str(Path(__file__).parents[1])
SOURCE = str(Path(__file__).parents[2] / "src")
BEGINNING = """
import resource, signal, sys
from pathlib import Path

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
"""


def run_on_small_disk(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    child = subprocess.run(
        [sys.executable, "-c", BEGINNING + script, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=TESTS,
        # Compiled modules would be cut short as well, and stay so for everybody.
        env={"PYTHONPATH": os.pathsep.join([SOURCE, TESTS]), "PYTHONDONTWRITEBYTECODE": "1", "PATH": ""},
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child
