"""The agent's keys: sizes set widths, single keys override them, and the model gets what was configured."""

from __future__ import annotations

import pytest

from dreamfleet.config.agent import hyperparameters
from dreamfleet.config.load import load_config, parse_overrides, save_config
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.hyperparameters import SIZES, DreamerOptions, sized


def test_the_defaults_are_those_of_the_definitions() -> None:
    assert hyperparameters(parse_overrides([]).agent) == DreamerOptions() == sized("size12m")


@pytest.mark.parametrize("size", SIZES)
def test_a_size_sets_every_width(size: str) -> None:
    assert hyperparameters(parse_overrides([f"agent.size={size}"]).agent) == sized(size)


def test_a_key_after_the_size_overrides_it_and_one_before_does_not() -> None:
    assert parse_overrides(["agent.size=size1m", "agent.dyn.deter=1024"]).agent.dyn.deter == 1024
    assert parse_overrides(["agent.dyn.deter=1024", "agent.size=size1m"]).agent.dyn.deter == 512


def test_a_saved_configuration_keeps_what_overrides_its_size(tmp_path) -> None:
    config = parse_overrides(["agent.size=size1m", "agent.dyn.deter=1024", "agent.enc.mults=[1, 2, 3, 4]"])
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("agent.size=size13m", "agent.size"),
        ("agent.dyn.deter=0", "agent.dyn.deter"),
        ("agent.dyn.detr=512", "did you mean 'agent.dyn.deter'"),
        ("agent.opt.schedule=step", "agent.opt.schedule"),
        ("jax.compute_dtype=int8", "jax.compute_dtype"),
    ],
)
def test_bad_values_name_their_key(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_overrides([override])
