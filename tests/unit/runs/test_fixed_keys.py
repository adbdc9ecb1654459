"""Which keys a run with a snapshot keeps: those of the task and those that its weights are made for, no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.agent.parameters import leaf_names
from dreamfleet.agent.train_step import init_state
from dreamfleet.config.agent import AgentGroup, hyperparameters
from dreamfleet.config.keys import fixed, group_of, walk
from dreamfleet.config.load import load_config, parse_overrides, save_config
from dreamfleet.config.schema import Config, EnvGroup
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.spaces import Space
from dreamfleet.envs.options import EnvOptions
from dreamfleet.model.spaces import Spaces
from dreamfleet.runs.resume import check_continues, continued_config
from support.messages import keys_in, keys_in_code
from support.snapshot_parts import commit
from support.tiny_dreamer import CHOICE, PUSH, VECTOR, make_recipe

DOCS = Path(__file__).parents[3] / "docs"
FIELDS = dict(walk(Config))

# Where a text may name a fixed key, and why it is no advice to a run that has a snapshot.
NO_ADVICE_FOR_A_RUN = {
    "config/": "refused before the first start, and so with no value that a run can have",
    "envs/": "an environment that cannot be made, which it could not at the first start either",
    "model/spaces.py": "an environment whose images do not suit, as at the first start",
    "commands/envs/space_table.py": "shows an environment, not a run",
    "agent/checks.py": "an environment that does not suit the agent, as at the first start",
    "launch/dreamer.py": "an agent that cannot be made, as at the first start",
    "launch/import_name.py": "refused before anything starts",
    "commands/bench/": "measures a configuration before it is a run's",
    "commands/doctor/": "looks at the machine",
    "commands/reproduce/command.py": "refused before the first start",
    "runs/resume.py": "refuses to change it",
    "supervision/failures.py": "says that it takes a new run",
    "agent/parameters.py": "a snapshot of another agent",
    "checkpoint/partial.py": "another run's weights, which do not fit",
}
NO_ADVICE_IN_DOCUMENTS = {
    "troubleshooting.md": {
        "agent.size": "of a new run, or measured by bench",
        "env.size": "measured by bench",
    },
    "survival.md": {},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_config(parse_overrides(["agent.size=tiny"]), tmp_path / "config.yaml")
    commit(tmp_path, 7, updates=3)
    return tmp_path


def changed(config: Config, key: str, number: int = 0) -> Config:
    """With another value there, the first or another one of those there are, whether or not it suits the others."""
    *groups, name = key.split(".")
    inner: Any = reduce(getattr, groups, config)
    values = others(getattr(inner, name), FIELDS[key].annotation)
    made = inner.model_copy(update={name: values[min(number, len(values) - 1)]})
    for depth in range(len(groups) - 1, -1, -1):
        outer: Any = reduce(getattr, groups[:depth], config)
        made = outer.model_copy(update={groups[depth]: made})
    assert isinstance(made, Config)
    return made


def others(value: Any, kind: Any) -> list[Any]:
    parts = [part for part in get_args(kind) if part is not type(None)]
    if choices := [part for part in parts if isinstance(part, str) and part != value]:
        return choices
    if value is None:  # a number or two, or further choices
        kind = get_origin(parts[0])
        return [*get_args(parts[0])] if kind is Literal else [(64, 64)] if kind is tuple else [1.0]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    if isinstance(value, tuple):
        return [(*value, *(value[-1:] or ("more",)))]
    return [{**value, "more": 1} if isinstance(value, Mapping) else f"{value}x"]


def test_whatever_a_message_recommends_can_be_done_when_the_run_is_resumed(run: Path) -> None:
    config = load_config(run / "config.yaml")
    found = keys_in_code()
    advice = sorted({key for _, key in found if not fixed(key)})
    assert {"agent.opt.lr", "env.restarts", "env.step_timeout_s", "run.max_restarts", "batch_size"} <= {*advice}
    possible = [key for key in advice if key != "run.from_checkpoint"]  # which is only for new runs
    check_continues(run, reduce(changed, possible, config))
    refused = [(module, key) for module, key in found if fixed(key)]
    assert [pair for pair in refused if not any(pair[0].startswith(place) for place in NO_ADVICE_FOR_A_RUN)] == []
    assert [place for place in NO_ADVICE_FOR_A_RUN if not any(module.startswith(place) for module, _ in refused)] == []


@pytest.mark.parametrize("name", NO_ADVICE_IN_DOCUMENTS)
def test_whatever_the_documents_recommend_for_a_run_can_be_done_when_it_is_resumed(name: str) -> None:
    keys = keys_in((DOCS / name).read_text())
    assert {key for key in keys if fixed(key)} == {*NO_ADVICE_IN_DOCUMENTS[name]}
    assert len(keys) > 10


def test_a_text_tells_its_keys() -> None:
    assert keys_in("set run.steps=5e4, or a smaller batch_size") == {"run.steps", "batch_size"}
    assert keys_in("set run.\0_timeout_s") >= {"run.stop_timeout_s", "run.save_timeout_s"}
    assert keys_in("rerun.steps, agent.size_of and run.nothing") == set()


@pytest.mark.parametrize(
    "key", ["env.repeat", "env.size", "env.kwargs", "agent.name", "agent.dyn.deter", "agent.policy.outscale"]
)
def test_a_fixed_key_is_refused_with_what_it_was_why_and_what_to_do(run: Path, key: str) -> None:
    config = load_config(run / "config.yaml")
    with pytest.raises(ConfigError) as raised:
        check_continues(run, changed(config, key))
    text, reason = str(raised.value), fixed(key)
    assert reason
    assert text.startswith(f"{key}{'.more' if key == 'env.kwargs' else ''} cannot change in {run}, which has a ")
    assert reason.why in text
    assert "choose another --run-dir for a new run" in text


def test_a_size_is_refused_by_its_name_with_the_way_to_keep_the_weights(run: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        check_continues(run, continued_config(run, ["agent.size=size1m"]))
    assert str(raised.value) == (
        f"agent.size cannot change in {run}, which has a snapshot created with agent.size=tiny: the saved weights and "
        f"statistics depend on it: choose another --run-dir for a new run (run.from_checkpoint={run} loads the "
        "weights that fit), or remove agent.size"
    )


def leaves(config: Config, dtype: Any = jnp.float32) -> Iterator[tuple[str, Any]]:
    """What a snapshot keeps of an agent with observations and actions of every kind, without computing any of it."""
    obs = Spaces(**VECTOR, image=Space(np.uint8, (64, 64, 3)))
    recipe = make_recipe(hyperparameters(config.agent), obs, Spaces(**CHOICE, **PUSH), dtype)
    state = jax.eval_shape(lambda key: init_state(key, recipe), jax.random.key(0))
    return zip(leaf_names(state), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)], strict=True)


def test_no_key_that_can_change_changes_what_a_snapshot_holds_of_the_agent() -> None:
    """All of them at once, once with each of their choices."""
    config = parse_overrides(["agent.size=tiny"])
    free = [f"agent.{key}" for key, field in walk(AgentGroup) if not group_of(field) and not fixed(f"agent.{key}")]
    assert len(free) > 30
    expected = dict(leaves(config))
    for number in range(2):
        made = reduce(lambda made, key: changed(made, key, number), free, config)
        assert dict(leaves(made)) == expected
    for dtype in (jnp.bfloat16, jnp.float16):  # of jax.compute_dtype
        assert dict(leaves(config, dtype)) == expected


def test_every_key_that_makes_the_environment_what_it_is_is_fixed() -> None:
    """All but the way in which it is stepped, and the clipping that lets a run go on which a value out of bounds ended.
    What else there is says what a worker does with it.
    """
    task = {"name", "kwargs", *(field.name for field in fields(EnvOptions))} - {"vector", "clip"}
    assert {key for key in EnvGroup.model_fields if fixed(f"env.{key}")} == task
