"""Presets: what they set, in which order, which go together, and what is said about those that do not."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dreamfleet.config.keys import flatten
from dreamfleet.config.load import parse_overrides
from dreamfleet.config.presets import all_presets
from dreamfleet.config.schema import Config
from dreamfleet.config.show import show_defaults
from dreamfleet.config.syntax import parse_yaml
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.hyperparameters import SIZES
from dreamfleet.envs.catalog import SUITES
from dreamfleet.envs.registry import find_env

# Task, size of images, action repeat, steps, train ratio, environments: as published.
PUBLISHED = {
    "atari": ("atari:pong", (96, 96), 4, 51_000_000, 32, 16),
    "atari100k": ("atari100k:pong", (64, 64), 4, 110_000, 256, 1),
    "crafter": ("crafter:reward", (64, 64), 0, 1_100_000, 512, 1),
    "dmc_proprio": ("dmc:walker_walk", None, 1, 1_100_000, 1024, 16),
    "dmc_vision": ("dmc:walker_walk", (64, 64), 1, 1_100_000, 256, 16),
    "procgen": ("procgen:coinrun", (96, 96), 0, 110_000_000, 64, 16),
    "dmlab": ("dmlab:explore_goal_locations_small", (64, 64), 4, 26_000_000, 32, 16),
    "minecraft": ("minecraft:diamond", (64, 64), 0, 10**10, 32, 16),
}


def message(*words: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parse_overrides(words)
    text = str(raised.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", all_presets())
def test_every_preset_is_a_valid_configuration_by_itself(name: str) -> None:
    preset = all_presets()[name]
    assert preset.about
    values = dict(flatten(parse_overrides([name]).model_dump()))
    assert {key: values[key] for key in preset.effects()} == {
        key: tuple(value) if isinstance(value, list) else value for key, value in preset.effects().items()
    }


@pytest.mark.parametrize(("name", "expected"), PUBLISHED.items())
def test_suites_have_the_published_values(name: str, expected: tuple[Any, ...]) -> None:
    config = parse_overrides([name])
    env, run = config.env, config.run
    assert (env.name, env.size, env.repeat, run.steps, run.train_ratio, run.envs) == expected
    assert (config.batch_size, config.batch_length, config.agent.horizon) == (16, 64, 333)


def test_the_two_ways_to_see_the_control_suite() -> None:
    proprio, vision = parse_overrides(["dmc_proprio"]), parse_overrides(["dmc_vision"])
    assert (proprio.env.kwargs, proprio.agent.size) == ({"proprio": True, "image": False}, "size1m")
    assert (vision.env.kwargs, vision.agent.size) == ({"proprio": False, "image": True}, "size12m")


@pytest.mark.parametrize("name", [name for name, preset in all_presets().items() if preset.kind == "suites"])
def test_a_suites_task_exists_where_it_is_installed(name: str) -> None:
    env = parse_overrides([name]).env.name
    suite = SUITES[env.partition(":")[0]]
    if suite.missing():
        with pytest.raises(ConfigError, match=re.escape(suite.install)):
            find_env(env)
    else:
        find_env(env)


def test_every_suite_that_needs_an_extra_has_a_preset() -> None:
    covered = {parse_overrides([name]).env.name.partition(":")[0] for name in all_presets()}
    assert {name for name, suite in SUITES.items() if suite.install} <= covered


DISCRETE = ("size200m", 0.01)  # of the agent, and the share of random actions


@pytest.mark.parametrize(
    ("suite", "agent", "kwargs", "repeat", "ratio"),
    [
        ("atari", DISCRETE, {"noops": 0}, 4, 32),
        ("atari100k", DISCRETE, {"noops": 0, "actions": "all", "length": 100_000}, 4, 256),
        ("crafter", DISCRETE, {}, 0, 512),
        ("dmc_proprio", ("size12m", 0.0), {"proprio": True, "image": False}, 2, 512),
        ("dmc_vision", ("size12m", 0.0), {"proprio": False, "image": True}, 2, 512),
        ("dmlab", DISCRETE, {"use_seed": False}, 4, 32),
        ("minecraft", DISCRETE, {"break_speed": 100.0, "length": 36000}, 0, 32),
        ("procgen", DISCRETE, {}, 0, 64),
    ],
)
def test_settings_of_the_published_curves(
    suite: str, agent: tuple[str, float], kwargs: dict[str, Any], repeat: int, ratio: float
) -> None:
    newest, paper = parse_overrides([suite]), parse_overrides([f"paper_{suite}"])
    assert (paper.agent.size, paper.agent.policy.unimix) == agent
    assert (paper.env.kwargs, paper.env.repeat, paper.run.train_ratio) == (kwargs, repeat, ratio)
    assert (paper.env.name, paper.env.size, paper.run.envs, paper.run.eval_envs) == (
        newest.env.name,
        newest.env.size,
        newest.run.envs,
        newest.run.eval_envs,
    )


@pytest.mark.parametrize("size", SIZES)
def test_a_size_is_what_agent_size_sets(size: str) -> None:
    assert parse_overrides([size]) == parse_overrides([f"agent.size={size}"])


def test_overrides_come_after_all_presets_wherever_they_stand() -> None:
    config = parse_overrides(["run.envs=32", "crafter", "size50m"])
    assert (config.run.envs, config.run.train_ratio, config.agent.dyn.deter) == (32, 512, 4096)


def test_a_size_after_a_suite_changes_the_suites() -> None:
    assert parse_overrides(["dmc_proprio", "size50m"]).agent.size == "size50m"


def test_presets_go_on_top_of_a_run() -> None:
    base = parse_overrides(["crafter", "seed=7", "run.log_every=3"])
    config = parse_overrides(["cpu"], base)
    assert (config.seed, config.env.name, config.jax.platform) == (7, "crafter:reward", "cpu")
    assert parse_overrides(["defaults"], base) == Config()


def test_another_task_of_the_suite_keeps_what_the_preset_says() -> None:
    config = parse_overrides(["dmc_vision", "env=dmc:cheetah_run"])
    assert (config.env.name, config.env.size) == ("dmc:cheetah_run", (64, 64))
    assert config.env.kwargs == {"proprio": False, "image": True}
    assert parse_overrides(["atari", "env=atari:boxing"]).env.repeat == 4


def test_a_task_of_another_suite_starts_afresh() -> None:
    config = parse_overrides(["atari", "env=crafter"])
    assert (config.env.size, config.env.repeat, config.run.steps) == (None, 0, 51_000_000)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["atari", "crafter"],
            "presets 'atari' and 'crafter' conflict, they set env.name to atari:pong and crafter:reward: choose one of "
            "them",
        ),
        (
            ["size1m", "atari", "size50m"],
            "presets 'size1m' and 'size50m' conflict, they set agent.size to size1m and size50m: choose one of them",
        ),
        (
            ["debug", "multicpu"],
            "presets 'debug' and 'multicpu' conflict, they set batch_size to 8 and 12: choose one of them",
        ),
        (
            ["size50m", "dmc_proprio"],
            "preset 'dmc_proprio' would override agent.size=size50m of 'size50m': put dmc_proprio before size50m",
        ),
        (
            ["debug", "atari"],
            "preset 'atari' would override run.train_ratio=8 of 'debug': put atari before debug",
        ),
        (["debug", "size12m"], "preset 'size12m' would override agent.size=tiny of 'debug': put size12m before debug"),
        (["crafter", "defaults"], "preset 'defaults' would override env.name=crafter:reward of 'crafter': put "),
        (["crafer"], "unknown preset 'crafer': did you mean crafter or paper_crafter?"),
        (["size11m"], "unknown preset 'size11m': did you mean size1m or size12m"),
        (["atari:pong"], "unknown preset 'atari:pong': did you mean env=atari:pong?"),
        (["zzzz"], "unknown preset 'zzzz': choose from defaults, atari, "),
    ],
)
def test_presets_that_do_not_work_are_refused_in_one_line(words: list[str], expected: str) -> None:
    assert message(*words).startswith(expected)


def test_presets_that_agree_go_together_in_any_order() -> None:
    assert parse_overrides(["cpu", "debug", "cpu"]) == parse_overrides(["debug"])
    assert parse_overrides(["cpu", "crafter"]) == parse_overrides(["crafter", "cpu"])


def test_the_file_of_the_defaults_is_current() -> None:
    """If this fails: scripts/document."""
    assert parse_yaml(show_defaults()) == dict(all_presets()["defaults"].values)
    assert parse_overrides(["defaults"]) == Config()
