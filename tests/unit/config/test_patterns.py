"""Keys as regular expressions, and where each value of a configuration comes from."""

from __future__ import annotations

import pytest

from dreamfleet.config.draft import origin_of
from dreamfleet.config.load import parse_overrides, resolve
from dreamfleet.config.schema import Config
from dreamfleet.config.show import show_origins
from dreamfleet.config.syntax import parse_yaml
from dreamfleet.core.errors import ConfigError


def test_a_pattern_sets_every_key_that_it_matches() -> None:
    agent = parse_overrides([r"agent\..*\.units=512"]).agent
    assert {
        group.units for group in (agent.enc, agent.dec, agent.rewhead, agent.conhead, agent.policy, agent.value)
    } == {512}
    assert agent.dyn == Config().agent.dyn
    assert parse_overrides([r"run\.(log|save)_every=7"]).run.report_every == 300
    assert parse_overrides([r"run\.(log|save)_every=7"]).run.save_every == 7


def test_a_plain_key_is_not_a_pattern() -> None:
    with pytest.raises(ConfigError, match=r"unknown config key 'run\.step': did you mean 'run\.steps'"):
        parse_overrides(["run.step=5"])  # the dot would match any character, and `s?` the rest


def test_below_the_environments_arguments_any_character_goes() -> None:
    assert parse_overrides(["env.kwargs.a*b=5"]).env.kwargs == {"a*b": 5}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            r"agent\..*\.unit=512",
            r"no config key matches 'agent\..*\.unit': a regular expression must match a whole key",
        ),
        ("*units=512", "config key '*units' is not a regular expression: nothing to repeat"),
        (r"agent\.dyn\..*=0.5", "config key 'agent.dyn.deter' cannot be 0.5: expected a whole number"),
    ],
)
def test_a_pattern_that_does_not_work_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_overrides([override])
    assert str(raised.value).startswith(message)


def test_every_value_knows_where_it_comes_from() -> None:
    base = parse_overrides(["seed=3", "run.log_every=9"])
    words = [
        "dmc_vision",
        "size1m",
        "env=dmc:cheetah_run",
        "env.kwargs.camera=1",
        r"agent\.(enc|dec)\.units=8",
        "seed=4",
    ]
    origins = resolve(words, base).origins
    expected = {
        "seed": "override",
        "batch_size": "default",
        "run.log_every": "run folder",
        "env.name": "override",
        "env.size": "preset dmc_vision",
        "env.kwargs.image": "preset dmc_vision",
        "env.kwargs.camera": "override",
        "agent.size": "preset size1m",
        "agent.dyn.deter": "agent.size",
        "agent.enc.units": "override",
        "agent.policy.units": "agent.size",
        "run.train_ratio": "preset dmc_vision",
    }
    assert {key: origin_of(origins, key) for key in expected} == expected


def test_what_a_new_name_resets_is_a_default_again() -> None:
    origins = resolve(["atari", "env=crafter"]).origins
    assert origin_of(origins, "env.size") == "default"


def test_the_printed_configuration_is_the_configuration() -> None:
    resolved = resolve(["crafter", "size50m", "env.kwargs.text='2e4'", "env.kwargs.deep.er=[1, 2]", "env.resize=area"])
    printed = show_origins(resolved)
    assert Config(**parse_yaml(printed)) == resolved.config
    assert "  size: [64, 64]                              # preset crafter\n" in printed
    assert max(len(line) for line in printed.splitlines()) <= 80


def test_a_long_value_has_its_origin_on_the_line_above() -> None:
    printed = show_origins(resolve([f"env=package.module:{'x' * 60}"])).splitlines()
    assert printed[printed.index("  # override") + 1] == f"  name: package.module:{'x' * 60}"
