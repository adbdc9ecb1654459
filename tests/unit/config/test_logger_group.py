"""Which sinks can be chosen, and what a misspelt one is answered with."""

from __future__ import annotations

import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import load_config, parse_overrides, save_config
from dreamfleet.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "sinks"),
    [
        ("[tensorboard]", ("tensorboard",)),
        ("wandb", ("wandb",)),
        ("[jsonl, mlflow]", ("jsonl", "mlflow")),
        ("[]", ()),
    ],
)
def test_sinks_are_a_list_or_one_of_them(tmp_path, text, sinks) -> None:
    config = parse_overrides([f"logger.sinks={text}"])
    assert config.logger.sinks == sinks
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tensorbord]", "config key 'logger.sinks': unknown sink 'tensorbord': did you mean 'tensorboard'?"),
        ("comet", "config key 'logger.sinks': unknown sink 'comet': choose from jsonl, tensorboard, wandb, mlflow"),
        ("[tensorboard, 3]", "config key 'logger.sinks': unknown sink 3: choose from"),
        ("3", "config key 'logger.sinks' cannot be 3"),
    ],
)
def test_an_unknown_sink_is_named_with_the_closest_one(text, message) -> None:
    with pytest.raises(ConfigError) as error:
        parse_overrides([f"logger.sinks={text}"])
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_the_actor_knows_how_often_to_record_an_episode(tmp_path) -> None:
    assert FleetArgs.from_config(parse_overrides(["logger.video_every=7"]), tmp_path).logger_video_every == 7
