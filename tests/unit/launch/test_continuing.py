"""What may change when a run goes on from imported episodes."""

from __future__ import annotations

import pytest

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.load import parse_overrides, save_config
from dreamfleet.core.errors import ConfigError
from dreamfleet.launch.continuing import check_continues


@pytest.fixture
def imported(tmp_path):
    save_config(parse_overrides([]), tmp_path / "config.yaml")
    snapshots = Snapshots(tmp_path)
    snapshots.begin(7)
    snapshots.commit(7, {"updates": 0, "imported": True})
    return tmp_path


def test_any_agent_may_learn_from_imported_episodes(imported):
    check_continues(imported, parse_overrides(["agent=my.module:make"]))


def test_the_environment_is_that_of_the_imported_episodes(imported):
    with pytest.raises(ConfigError, match=r"env\.kwargs\.size cannot change"):
        check_continues(imported, parse_overrides(["env.kwargs.size=8"]))
