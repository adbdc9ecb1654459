from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import yaml

from dreamfleet.config.load import load_config, parse_overrides, save_config
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import ConfigError


def test_a_saved_configuration_loads_as_the_same(tmp_path):
    config = parse_overrides(["env=dummy", "run.steps=2e4", "run.duration=1e-5", "env.kwargs.size=[3, 4]", "seed=7"])
    assert config.replay.prio.initial == math.inf
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


def test_a_save_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    def full(path, data):
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError("no space left on device")

    save_config(Config(), tmp_path / "config.yaml")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        save_config(parse_overrides(["seed=7"]), tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == Config()


@pytest.mark.parametrize(
    "text", ["2e4", "no", "1:30", "2024-01-01", "true", "null", "", "1_000", "a: b", "é", ".inf", "010"]
)
def test_a_text_that_looks_like_something_else_stays_a_text(tmp_path, text):
    config = Config(env={"kwargs": {"text": text}})
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml").env.kwargs == {"text": text}


def test_plain_yaml_tools_read_the_file_alike(tmp_path):
    config = parse_overrides(["env.kwargs.text='no'", "run.train_ratio=1e-5"])
    save_config(config, tmp_path / "config.yaml")
    loaded = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert loaded == json.loads(json.dumps(config.model_dump()))  # which has lists for tuples


def test_a_key_missing_in_the_file_gets_its_default(tmp_path):
    (tmp_path / "config.yaml").write_text("run: {envs: 3}\n")
    assert load_config(tmp_path / "config.yaml") == parse_overrides(["run.envs=3"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: {stepz: 3}", "unknown config key 'run.stepz': did you mean 'run.steps'"),
        ("env: {kwargs: {a:5}}", "'a:5' has no value: write {a: 5}, with a space after the colon"),
        ("bach_size: 3", "unknown config key 'bach_size': did you mean 'batch_size'"),
        ("run: {steps: soon}", "config key 'run.steps' cannot be 'soon'"),
        ("run: 3", "'run' is a group of config keys"),
        ("just text", "is not a configuration"),
        ("run: {", "cannot read the configuration"),
        ("run: !!python/object:os.system {}", "cannot read the configuration"),
    ],
)
def test_a_bad_file_gets_a_clear_error(tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "config.yaml")


def test_a_missing_file_gets_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*nothing\.yaml"):
        load_config(tmp_path / "nothing.yaml")


BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in itertools.pairwise("abcdefgh")
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# " + "x" * (1 << 20), "it has more than 1 MiB"),
        ("seed: " + "[" * 5000, "nested too deeply|while parsing"),
        (BOMB, "it has more than 100000 values"),
        ("a: &a [*a]", "it has more than 100000 values"),
    ],
    ids=["large", "deep", "aliases", "endless"],
)
def test_a_file_that_asks_for_too_much_is_refused(tmp_path, text: str, words: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"cannot read the configuration .*{words}"):
        load_config(tmp_path / "config.yaml")
