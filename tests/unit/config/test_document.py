"""The reference of all keys says what the schema says."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamfleet.config import document
from dreamfleet.config.keys import fixed, group_of, walk
from dreamfleet.config.presets import all_presets
from dreamfleet.config.schema import Config
from dreamfleet.config.show import show_defaults

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("path", "made"),
    [
        ("docs/configuration.md", document.document),
        ("src/dreamfleet/config/presets/defaults.yaml", show_defaults),
    ],
)
def test_what_is_made_from_the_schema_is_current(path: str, made) -> None:
    assert (ROOT / path).read_text() == made().rstrip("\n") + "\n", "run scripts/document"


def test_every_key_and_preset_is_in_the_reference() -> None:
    page = document.document()
    for key, _ in walk(Config):
        assert f"`{key}`" in page
    assert all(f"`{name}`" in page for name in all_presets())


def test_every_key_and_group_says_what_it_means() -> None:
    for key, field in walk(Config):
        assert field.description, key
        assert field.description.endswith("."), key
        kind = type(field.get_default(call_default_factory=True)).__name__ if group_of(field) else ""  # type: ignore
        assert not (kind and "(" in field.description), f"{key} is described by the definition of its type"


def test_the_reference_says_which_keys_are_fixed_for_a_run() -> None:
    rows = [row.split(" | ") for row in document.document().splitlines() if row.startswith("| `")]
    cells = {row[0].strip("| `"): row[-1].strip("| ") for row in rows}
    assert (cells["env.repeat"], cells["agent.name"], cells["agent.size"]) == ("task", "agent", "networks")
    assert (cells["agent.dec.outscale"], cells["env.restarts"]) == ("first weights", "")
    marked = {key for key, cell in cells.items() if cell in ("task", "agent", "networks", "first weights")}
    assert marked == {key for key, field in walk(Config) if not group_of(field) and fixed(key)}


def test_a_row_has_default_type_bounds_and_meaning() -> None:
    page = document.document().splitlines()
    kind = "whole number, at least 2, at most 256"
    assert f"| `agent.dyn.classes` | `16` | {kind} | Classes per latent. | networks |" in page
    assert (
        "| `replay.size` | `5e6` | whole number, at least 1 | Capacity of the training replay in steps."
        in "\n".join(page)
    )
