"""The published schema of status.json is that of the code."""

from __future__ import annotations

import json
from pathlib import Path

from dreamfleet.core.roles import RoleKind
from dreamfleet.core.waits import LimiterState, Wait
from dreamfleet.runs.status_schema import schema

SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "status.json"


def test_the_schema_is_current() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema(), "run scripts/document"


def test_the_schema_names_every_wait_state_and_kind() -> None:
    found = json.loads(schema())
    assert set(found["$defs"]["Wait"]["enum"]) == set(Wait)
    assert set(found["$defs"]["LimiterState"]["enum"]) == set(LimiterState)
    roles = found["properties"]["roles"]["additionalProperties"]["discriminator"]
    assert set(roles["mapping"]) == set(RoleKind)
    assert found["required"] == ["state"]
