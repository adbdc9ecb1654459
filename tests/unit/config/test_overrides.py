from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from dreamfleet.config.keys import known_keys
from dreamfleet.config.load import parse_overrides, resolve
from dreamfleet.config.schema import Config, EnvGroup
from dreamfleet.core.errors import ConfigError


def test_no_overrides_give_the_defaults():
    assert parse_overrides([]) == Config()


def test_defaults_are_those_of_the_reference():
    config = Config()
    assert (config.batch_size, config.batch_length, config.report_length, config.replay_context) == (16, 64, 32, 1)
    assert (config.run.steps, config.run.train_ratio, config.run.envs, config.run.eval_envs) == (10**10, 32.0, 16, 4)
    assert (config.run.log_every, config.run.report_every, config.run.save_every) == (120, 300, 900)
    assert config.replay.model_dump() == {
        "size": 5_000_000,
        "size_bytes": 0,
        "chunksize": 1024,
        "online": True,
        "fracs": {"uniform": 1.0, "priority": 0.0, "recency": 0.0},
        "prio": {"exponent": 0.8, "maxfrac": 0.5, "initial": math.inf, "zero_on_sample": True},
        "recexp": 1.0,
    }


def test_naming_a_group_sets_its_name():
    config = parse_overrides(["agent=my.module:make", "env=gym:CartPole-v1"])
    assert config.agent.name == "my.module:make"
    assert config.env.name == "gym:CartPole-v1"


@pytest.mark.parametrize("override", ["env=other", "env.name=other", "env={kwargs: {}, name: other}"])
def test_another_environment_starts_without_the_arguments_of_the_one_before(override):
    assert parse_overrides(["env.kwargs.length=50", override]).env == EnvGroup(name="other")
    config = parse_overrides(["env.kwargs.length=50", override, "env.kwargs.size=2"])
    assert config.env.kwargs == {"size": 2}


@pytest.mark.parametrize("order", ["{name: other, kwargs: {size: 2}}", "{kwargs: {size: 2}, name: other}"])
def test_an_environment_given_with_its_arguments_keeps_them(order):
    assert parse_overrides([f"env={order}"]).env.kwargs == {"size": 2}


def test_dotted_keys_reach_into_groups_and_the_last_one_counts():
    config = parse_overrides(["run.envs=3", "batch_size=8", "run.envs=4"])
    assert (config.run.envs, config.batch_size) == (4, 8)


def test_any_key_goes_below_the_environments_arguments():
    config = parse_overrides(
        ["env.kwargs.length=50", "env.kwargs.size=[64, 64]", "env.kwargs.deep.er=1e-3", "env=dummy"]
    )
    assert config.env.kwargs == {"length": 50, "size": [64, 64], "deep": {"er": 0.001}}


def test_a_mapping_sets_the_keys_of_a_group_and_leaves_the_others():
    config = parse_overrides(["run.envs=3", "run={steps: 9000, remote_envs: true}"])
    assert (config.run.envs, config.run.steps, config.run.remote_envs) == (3, 9000, True)


def test_overrides_go_on_top_of_a_given_configuration():
    base = parse_overrides(["run.envs=3", "env.kwargs.length=50"])
    changed = parse_overrides(["env.kwargs.size=2"], base)
    assert changed.run.envs == 3
    assert changed.env.kwargs == {"length": 50, "size": 2}
    assert base.env.kwargs == {"length": 50}


@pytest.mark.parametrize(
    "words",
    [
        ["tiny", "agent=random"],
        ["crafter", "size1m", "agent=random"],
        ["crafter", "env=gym:CartPole-v1", "env.kwargs.a=1"],
        ["env.kwargs.a=1", "env=gym:CartPole-v1"],
        ["agent.opt.lr=1e-3", "agent=robots:Agent", "agent=random"],
    ],
)
def test_the_same_words_change_nothing_on_top_of_what_they_made(words):
    """A preset sets keys of a group that another name then resets: on a resumed run as on a new one."""
    begun = parse_overrides(words)
    assert parse_overrides(words, begun) == begun


def test_a_name_that_a_run_has_already_keeps_the_other_keys_of_the_run():
    begun = parse_overrides(["env=gym:CartPole-v1", "env.kwargs.a=1", "agent=random", "agent.report=false"])
    again = resolve(["env=gym:CartPole-v1", "agent=random"], begun)
    assert again.config == begun
    assert again.origins["agent.report"] == again.origins["env.kwargs.a"] == "run folder"
    presets = resolve(["crafter", "env=gym:CartPole-v1"], begun)
    assert presets.config.env == begun.env
    assert presets.origins["env.kwargs.a"] == "run folder"
    assert parse_overrides(["env=dummy", "agent=dreamer"], begun) == parse_overrides([])


@pytest.mark.parametrize(
    ("text", "steps"), [("2e4", 20000), ("20_000", 20000), ("1e10", 10**10), ("5.0", 5), ("1.5e1", 15), ("+7", 7)]
)
def test_whole_numbers_may_be_written_in_any_notation(text, steps):
    value = parse_overrides(["agent=random", f"run.steps={text}"]).run.steps
    assert value == steps
    assert isinstance(value, int)


@pytest.mark.parametrize(("text", "ratio"), [("1", 1.0), ("1e-3", 0.001), ("-1", -1.0), (".5", 0.5)])
def test_a_float_key_takes_every_number(text, ratio):
    value = parse_overrides([f"run.train_ratio={text}"]).run.train_ratio
    assert value == ratio
    assert isinstance(value, float)


@pytest.mark.parametrize(
    ("text", "size"), [("96", (96, 96)), ("64,96", (64, 96)), ("[64, 96]", (64, 96)), ("null", None)]
)
def test_a_size_is_one_number_or_two(text, size):
    assert parse_overrides([f"env.size={text}"]).env.size == size


def test_a_value_may_contain_equals_signs_and_braces():
    config = parse_overrides(["run.actor_addr=tcp://127.0.0.1:{auto}", "env.kwargs.query=a=b"])
    assert config.run.actor_addr == "tcp://127.0.0.1:{auto}"
    assert config.env.kwargs == {"query": "a=b"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.stepz=1", "unknown config key 'run.stepz': did you mean 'run.steps'?"),
        ("steps=1", "unknown config key 'steps': did you mean 'run.steps'?"),
        ("stepz=1", "unknown config key 'stepz': did you mean 'run.steps'?"),
        ("rnu.steps=1", "unknown config key 'rnu.steps': did you mean 'run.steps'?"),
        ("agnet=random", "unknown config key 'agnet': did you mean 'agent'?"),
        ("run.steps.more=1", "unknown config key 'run.steps.more': did you mean 'run.steps'?"),
        ("env.kwarg.x=1", "unknown config key 'env.kwarg.x': did you mean 'env.kwargs'?"),
        ("env.name.more=1", "unknown config key 'env.name.more': did you mean 'env.name'?"),
        ("run={stepz: 1}", "unknown config key 'run.stepz': did you mean 'run.steps'?"),
        (
            "xyzzy=1",
            "unknown config key 'xyzzy': keys start with seed, batch_size, batch_length, report_length, consec_train, "
            "consec_report, replay_context, env, agent, replay, run, jax, logger",
        ),
        ("run.steps=2.5", "config key 'run.steps' cannot be 2.5: expected a whole number"),
        ("run.steps=many", "config key 'run.steps' cannot be 'many': expected a whole number"),
        ("run.envs=true", "config key 'run.envs' cannot be True: expected a whole number"),
        ("run.duration=long", "config key 'run.duration' cannot be 'long': expected a number"),
        ("run.duration=.inf", "config key 'run.duration' cannot be inf: expected a finite number"),
        ("run.remote_envs=1", "config key 'run.remote_envs' cannot be 1: expected true or false"),
        ("run.remote_envs=yes", "config key 'run.remote_envs' cannot be 'yes': expected true or false"),
        ("env=5", "config key 'env.name' cannot be 5: expected text"),
        ("env.size=big", "config key 'env.size' cannot be 'big': expected one number or two, such as 64,96"),
        ("env.kwargs=5", "config key 'env.kwargs' cannot be 5: expected a mapping"),
        ("batch_size=0", "config key 'batch_size' cannot be 0: expected a value greater than or equal to 1"),
        ("run.duration=-1", "config key 'run.duration' cannot be -1: expected a value greater than or equal to 0"),
        ("replay.size_bytes=2.5", "config key 'replay.size_bytes' cannot be 2.5: expected a whole number"),
        (
            "replay.prio.initial=.nan",
            "config key 'replay.prio.initial' cannot be nan: expected a value greater than or equal to 0",
        ),
        ("replay.prio.exponent=.inf", "config key 'replay.prio.exponent' cannot be inf: expected a finite number"),
        (
            "replay.fracs.uniform=0",
            "all replay.fracs are 0, so nothing can be sampled: set one of them, such as replay.fracs.uniform=1",
        ),
        ("replay.frac.recency=1", "unknown config key 'replay.frac.recency': did you mean 'replay.fracs.recency'?"),
        ("run=5", "'run' is a group of config keys: set one of its keys, such as run.steps=..."),
        ("=5", "cannot read '=5': expected key=value, such as run.steps=2e4"),
        ("env=[a", "cannot read the value of 'env=[a': put quotes around it"),
        (
            "env.kwargs.config={simulation_frequency:5}",
            "cannot read the value of 'env.kwargs.config={simulation_frequency:5}': 'simulation_frequency:5' has no "
            "value: write {simulation_frequency: 5}, with a space after the colon",
        ),
        (
            "env.kwargs={a: [1, {b: 1, c:x:2}]}",
            "cannot read the value of 'env.kwargs={a: [1, {b: 1, c:x:2}]}': 'c:x:2' has no value: write {c: x:2}, with "
            "a space after the colon",
        ),
        (
            "run={steps:9000}",
            "cannot read the value of 'run={steps:9000}': 'steps:9000' has no value: write {steps: 9000}, with a space "
            "after the colon",
        ),
        (
            "env.kwargs={fast}",
            "cannot read the value of 'env.kwargs={fast}': 'fast' has no value: write {fast: VALUE}, or {fast: null}",
        ),
    ],
)
def test_bad_input_gets_one_line_that_names_the_way_out(override, message):
    with pytest.raises(ConfigError) as raised:
        parse_overrides([override])
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("text", "kwargs"),
    [
        ("{a: null, b: ~}", {"a": None, "b": None}),
        ("{'a:5': null}", {"a:5": None}),
        ("{a:5: 1}", {"a:5": 1}),
        ("{a: '', b: c:5}", {"a": "", "b": "c:5"}),
        ('{"a":5, b:[2], c:{d: 1}}', {"a": 5, "b": [2], "c": {"d": 1}}),
        ("{a: [b:5]}", {"a": ["b:5"]}),
    ],
)
def test_a_mapping_may_hold_null_and_colons_that_are_meant(text, kwargs):
    assert parse_overrides([f"env.kwargs={text}"]).env.kwargs == kwargs


def test_several_bad_values_are_all_named():
    with pytest.raises(ConfigError, match=r"'batch_size' cannot be 0.*; config key 'run\.envs' cannot be 'x'"):
        parse_overrides(["batch_size=0", "run.envs=x"])


def test_a_fleet_without_environments_is_refused_unless_they_join_from_elsewhere():
    with pytest.raises(ConfigError, match=r"run\.envs=0 leaves no environments .* run\.remote_envs=true"):
        parse_overrides(["run.envs=0"])
    assert parse_overrides(["run.envs=0", "run.remote_envs=true"]).run.envs == 0


def test_a_replay_too_small_for_one_batch_is_refused():
    # A sample is 2 batches of 10 steps and 1 step of context.
    overrides = ["batch_size=3", "batch_length=10", "consec_train=2", "report_length=5"]
    assert parse_overrides([*overrides, "replay.size=63"]).sample_length == 21
    with pytest.raises(
        ConfigError, match=r"replay\.size=62 is smaller than one batch of 3 x 21 steps: set replay\.size=63"
    ):
        parse_overrides([*overrides, "replay.size=62"])


@pytest.mark.parametrize(("text", "initial"), [("inf", math.inf), (".inf", math.inf), ("2", 2.0)])
def test_the_first_priority_may_be_infinite(text, initial):
    assert parse_overrides([f"replay.prio.initial={text}"]).replay.prio.initial == initial


def test_more_actor_batch_than_environments_is_allowed():
    assert parse_overrides(["run.envs=2", "run.eval_envs=0", "run.actor_batch=64"]).run.actor_batch == 64


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Config().run.steps = 5  # type: ignore[misc]


def test_every_key_says_what_it_means():
    def fields(model):
        for name, field in model.model_fields.items():
            yield name, field
            if hasattr(field.annotation, "model_fields"):
                yield from fields(field.annotation)

    undocumented = [name for name, field in fields(Config) if not field.description]
    assert undocumented == []


def test_known_keys_list_leaves_and_named_groups():
    keys = known_keys()
    assert {"seed", "env", "env.name", "env.kwargs", "run.steps"} <= set(keys)
    assert "run" not in keys


def test_observations_are_named_as_the_environment_names_them() -> None:
    """Parts of a Dict have a path, those of a Tuple a number."""
    config = parse_overrides(["env.read={arm/0: numbers, 1: image}", "env.read.leg/left=classes", "env.read.3=image"])
    assert config.env.read == {"arm/0": "numbers", "1": "image", "leg/left": "classes", "3": "image"}
    with pytest.raises(ConfigError, match=r"'env.read.arm' cannot be 'clases': expected a value 'image', 'classes' or"):
        parse_overrides(["env.read={arm: clases}"])
