"""Keys that hold lists and mappings: what people may write, on a command line and in a file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dreamfleet.config.load import load_config, parse_overrides, resolve, save_config
from dreamfleet.config.schema import Config
from dreamfleet.config.show import show_origins
from dreamfleet.core.errors import ConfigError

STACK = "gymnasium.wrappers:FrameStackObservation"


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("env.drop=[mission, 'arm/*']", "drop", ("mission", "arm/*")),
        ("env.drop=mission", "drop", ("mission",)),
        ("env.drop=[0, 1/x]", "drop", ("0", "1/x")),
        ("env.text={0: 8}", "text", {"0": 8}),
        ("env.text={mission: 128, 'a/b': 64}", "text", {"mission": 128, "a/b": 64}),
        ("env.text.mission=1.28e2", "text", {"mission": 128}),
        ("env.pad={cars: 8}", "pad", {"cars": 8}),
        ("env.clip=true", "clip", True),
        ("env.reward_weights=[1, 0.5]", "reward_weights", (1.0, 0.5)),
        ("env.reward_weights=2", "reward_weights", (2.0,)),
        ("env.wrappers=a.b:C", "wrappers", ("a.b:C",)),
        ("env.wrappers=[a.b:C, d:E]", "wrappers", ("a.b:C", "d:E")),
        (f"env.wrappers=[a.b:C, {STACK}: {{stack_size: 4}}]", "wrappers", ("a.b:C", {STACK: {"stack_size": 4}})),
        (f"env.wrappers=[{{{STACK}: {{stack_size: 4}}}}]", "wrappers", ({STACK: {"stack_size": 4}},)),
        (f"env.wrappers=[{STACK}: {{}}]", "wrappers", (STACK,)),
    ],
)
def test_a_list_is_read_as_people_write_it_and_survives_files(tmp_path, override: str, key: str, value: Any) -> None:
    config = parse_overrides([override])
    assert getattr(config.env, key) == value
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert Config.model_validate(json.loads(json.dumps(config.model_dump()))) == config  # as in fleet.json


def test_wrappers_are_written_in_a_file_as_on_the_command_line(tmp_path) -> None:
    text = f"env:\n  wrappers:\n    - a.b:C\n    - {STACK}: {{stack_size: 4}}\n    - d:E:\n"
    (tmp_path / "config.yaml").write_text(text)
    assert load_config(tmp_path / "config.yaml").env.wrappers == ("a.b:C", {STACK: {"stack_size": 4}}, "d:E")


def test_lists_are_shown_with_their_origin() -> None:
    shown = show_origins(resolve(["env.text={mission: 128}", f"env.wrappers=[{STACK}: {{stack_size: 4}}]"]))
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "mission: 128 # override" in lines
    assert lines[lines.index(f"wrappers: [{{'{STACK}': {{stack_size: 4}}}}]") - 1] == "# override"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env.drop=1.5", "'env.drop.0' cannot be 1.5: expected text"),
        ("env.drop={a: 1}", "'env.drop' cannot be {'a': 1}: expected a list"),
        ("env.text=mission", "'env.text' cannot be 'mission': expected a mapping"),
        ("env.text={mission: many}", "'env.text.mission' cannot be 'many': expected a whole number"),
        ("env.pad={cars: 0}", "'env.pad.cars' cannot be 0: expected a value greater than or equal to 1"),
        ("env.reward_weights=[a]", "'env.reward_weights.0' cannot be 'a': expected a number"),
        ("env.clip=yes", "'env.clip' cannot be 'yes': expected true or false"),
        (
            "env.wrappers=[TimeLimit]",
            "'env.wrappers' cannot hold 'TimeLimit': expected module:Class or module:Class: {argument: value}",
        ),
        ("env.wrappers=[a:B: 4]", "'env.wrappers' cannot hold {'a:B': 4}: expected module:Class or"),
        ("env.wrappers={a:B: {}, c:D: {}}", "'env.wrappers' cannot be {'a:B': {}, 'c:D': {}}: expected a list of"),
    ],
)
def test_a_wrong_list_gets_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_overrides([override])
    assert f"config key {message}" in str(raised.value)
