"""A full disk costs a run its words, and neither a role nor a line of the others."""

from __future__ import annotations

from pathlib import Path

from support.small_disk import run_on_small_disk

PRINTS = """
import sys
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.supervision.supervisor import Supervisor
from dreamfleet.supervision.role_spec import RoleSpec

def prints():
    import sys
    from support import fake_roles
    print("what a user's environment has to say")
    sys.stderr.write("no snapshot was taken\\n")
    fake_roles.finishes()

with RunFolder(folder) as run:
    (run.logs / "role.log").write_bytes(b"." * 5000)
    room(5000)
    code = Supervisor([RoleSpec("role", prints)], run).run()
print(code)
"""

EVENTS = """
import json
from dreamfleet.runs.run_folder import RunFolder

with RunFolder(folder) as run:
    run.write_event("role", "first", {})
    room((folder / "events.jsonl").stat().st_size + 20)
    try:
        run.write_event("role", "second", {})
    except OSError as error:
        print(error.strerror)
    room(hard)
    run.write_event("role", "third", {})
print([json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()])
"""


def test_a_role_whose_log_cannot_be_written_goes_on(tmp_path: Path) -> None:
    assert run_on_small_disk(PRINTS, tmp_path).stdout == "0\n"


def test_half_an_event_is_taken_back(tmp_path: Path) -> None:
    assert run_on_small_disk(EVENTS, tmp_path).stdout == "No space left on device\n['first', 'third']\n"
