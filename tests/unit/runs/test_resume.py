"""What a run is configured with when it goes on, and what may change then."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.load import parse_overrides, save_config
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import ConfigError
from dreamfleet.runs.resume import check_continues, continued_config, resolve_run
from support.snapshot_parts import write_parts


@pytest.fixture
def imported(tmp_path):
    save_config(parse_overrides([]), tmp_path / "config.yaml")
    snapshots = Snapshots(tmp_path)
    write_parts(snapshots.begin(7), "replay", "logger")
    snapshots.commit(7, {"updates": 0, "imported": True})
    return tmp_path


def test_any_agent_may_learn_from_imported_episodes(imported):
    check_continues(imported, parse_overrides(["agent=my.module:make"]))


def test_the_environment_is_that_of_the_imported_episodes(imported):
    with pytest.raises(ConfigError, match=r"env\.kwargs\.size cannot change"):
        check_continues(imported, parse_overrides(["env.kwargs.size=8"]))


def test_a_run_that_a_value_out_of_bounds_has_ended_goes_on_with_clipping(imported):
    check_continues(imported, parse_overrides(["env.clip=true"]))
    with pytest.raises(ConfigError, match=r"env\.drop cannot change"):
        check_continues(imported, parse_overrides(["env.clip=true", "env.drop=[image]"]))


def test_a_run_folder_alone_is_enough(tmp_path: Path) -> None:
    started = parse_overrides(["quickstart", "seed=3"])
    save_config(started, tmp_path / "config.yaml")
    assert continued_config(tmp_path, []) == started
    assert continued_config(tmp_path, ["run.steps=5e4"]).seed == 3
    assert resolve_run(tmp_path, []).origins["seed"] == "run folder"


def test_without_a_run_there_are_the_defaults(tmp_path: Path) -> None:
    assert resolve_run(None, []).config == continued_config(tmp_path, []) == Config()


@pytest.mark.parametrize("record", ["episodes.jsonl", "metrics.jsonl"])
def test_a_run_of_another_task_is_refused_once_it_has_records(tmp_path: Path, record: str) -> None:
    save_config(parse_overrides(["crafter"]), tmp_path / "config.yaml")
    (tmp_path / record).write_text("")
    other = continued_config(tmp_path, ["env=atari:pong"])
    check_continues(tmp_path, other)  # nothing came of the first start: a mistake may be put right
    (tmp_path / record).write_text("{}\n")
    with pytest.raises(ConfigError) as raised:
        check_continues(tmp_path, other)
    assert str(raised.value) == (
        f"env.name cannot change in {tmp_path}, which contains a run of crafter:reward, not of atari:pong: "
        "choose another --run-dir for a new run"
    )
    check_continues(tmp_path, continued_config(tmp_path, ["crafter", "run.envs=2"]))
