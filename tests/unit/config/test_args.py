from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import parse_overrides
from dreamfleet.config.schema import Config, RunGroup, Sampling
from dreamfleet.core.errors import ConfigError
from support.cli_fleet import environment

# What the main function of the published code passes: its group `run`, and the shape of the batches.
PUBLISHED: dict[str, Any] = {
    "steps": 1e10,
    "duration": 0,
    "train_ratio": 32.0,
    "log_every": 120,
    "report_every": 300,
    "save_every": 900,
    "envs": 16,
    "eval_envs": 4,
    "eval_eps": 1,
    "report_batches": 1,
    "from_checkpoint": "",
    "from_checkpoint_regex": ".*",
    "episode_timeout": 180,
    "actor_addr": "localhost:{auto}",
    "replay_addr": "localhost:{auto}",
    "logger_addr": "localhost:{auto}",
    "actor_batch": -1,
    "actor_threads": 1,
    "agent_process": False,
    "remote_replay": False,
    "remote_envs": False,
    "usage": {"psutil": True, "nvsmi": True, "gputil": False, "malloc": False, "gc": False},
    "debug": True,
    "replica": 0,
    "replicas": 1,
    "logdir": "runs/published",
    "batch_size": 16,
    "batch_length": 64,
    "report_length": 32,
    "consec_train": 1,
    "consec_report": 1,
    "replay_context": 1,
}
USED = {key: value for key, value in PUBLISHED.items() if key not in ("debug", "eval_eps", "usage")}


class PublishedConfig(dict[str, Any]):
    """Behaves as the authors' `elements.Config`: a dictionary that cannot be changed, with its keys as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return type(self)(value) if isinstance(value, dict) else value


def test_carries_every_run_key_and_the_shape_of_the_batches(tmp_path):
    env = ["env.step_timeout_s=5", "env.restarts=2", "env.restart_window_s=7"]
    config = parse_overrides(["run.steps=2e4", "run.envs=3", "batch_size=4", "seed=7", *env])
    args = FleetArgs.from_config(config, tmp_path)
    for key in RunGroup.model_fields:
        assert getattr(args, key) == getattr(config.run, key)
    for key in Sampling.model_fields:
        assert getattr(args, key) == getattr(config, key)
    assert (args.env_step_timeout_s, args.env_restarts, args.env_restart_window_s) == (5, 2, 7)
    assert (args.logdir, args.replica, args.replicas) == (str(tmp_path), 0, 1)


def test_args_pass_through_unchanged():
    args = FleetArgs(envs=3)
    assert FleetArgs.coerce(args) is args


@pytest.mark.parametrize("make", [dict, SimpleNamespace], ids=["mapping", "attributes"])
def test_missing_keys_get_their_defaults(make):
    args = FleetArgs.coerce(make(envs=3, steps=2e4, logdir=Path("runs")))
    assert args == FleetArgs(envs=3, steps=20000, logdir="runs")


def test_numpy_integers_are_whole_numbers():
    assert FleetArgs.coerce({"envs": np.int64(3)}).envs == 3


def test_the_public_key_of_earlier_versions_names_its_successor():
    with pytest.raises(ConfigError, match=r"args\.server_public was renamed: set args\.public_keys"):
        FleetArgs.coerce({"server_public": "x"})


def test_an_unknown_key_in_a_mapping_names_the_closest():
    with pytest.raises(ConfigError, match="unknown config key 'actor_adr': did you mean 'actor_addr'"):
        FleetArgs.coerce({"actor_adr": "tcp://127.0.0.1:5555"})


def test_further_attributes_are_ignored():
    assert FleetArgs.coerce(SimpleNamespace(envs=3, mine=1)).envs == 3


@pytest.mark.parametrize("make", [PublishedConfig, dict], ids=["configuration object", "plain dictionary"])
def test_what_a_caller_of_the_published_code_passes_is_taken_and_the_rest_is_named(make):
    with pytest.warns(UserWarning, match=r"^args: debug, eval_eps, usage are ignored") as warned:
        args = FleetArgs.coerce(make(PUBLISHED))
    assert len(warned) == 1
    assert args == FleetArgs.coerce(SimpleNamespace(**PUBLISHED)) == FleetArgs(**USED)


def test_a_configuration_object_may_have_keys_that_resemble_known_ones():
    with pytest.warns(UserWarning, match=r"^args: num_envs is ignored"):
        assert FleetArgs.coerce(PublishedConfig(envs=3, num_envs=5)).envs == 3


def test_keys_of_a_plain_mapping_that_resemble_no_known_one_are_ignored():
    with pytest.warns(UserWarning, match=r"^args: ipv6, wandb_project are ignored"):
        assert FleetArgs.coerce({"envs": 3, "wandb_project": "mine", "ipv6": False}).envs == 3


def test_what_is_ignored_is_said_once_however_many_roles_get_the_arguments():
    script = "from dreamfleet.config.args import FleetArgs\nfor _ in range(3): FleetArgs.coerce({'ipv6': False})"
    ended = subprocess.run([sys.executable, "-c", script], env=environment(), stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("args: ipv6 is ignored") == 1


@pytest.mark.parametrize("make", [PublishedConfig, dict], ids=["configuration object", "plain dictionary"])
def test_a_whole_configuration_is_refused_instead_of_half_read(make):
    with pytest.raises(ConfigError, match=r"args has a nested group 'run': pass its keys flat"):
        FleetArgs.coerce(make(run={"steps": 5}, logdir="runs", batch_size=4))


@pytest.mark.parametrize("make", [dict, SimpleNamespace], ids=["mapping", "attributes"])
def test_a_wrong_type_names_key_value_and_expectation(make):
    with pytest.raises(ConfigError, match="config key 'envs' cannot be 'many': expected a whole number"):
        FleetArgs.coerce(make(envs="many"))


def test_a_replica_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="replica=2 is out of range for replicas=2: use 0 to 1"):
        FleetArgs.coerce({"replica": 2, "replicas": 2})


@pytest.mark.parametrize(
    ("args", "rows"),
    [
        ({"envs": 16}, 8),
        ({"envs": 1}, 1),
        ({"envs": 16, "remote_envs": True}, 8),
        ({"envs": 0, "remote_envs": True}, 16),
        ({"envs": 0, "remote_envs": True, "actor_batch": 40}, 40),
    ],
)
def test_a_policy_call_has_room_for_half_of_the_environments_also_for_those_that_nobody_counted(args, rows):
    assert FleetArgs(**args).actor_rows == rows


def test_a_nested_configuration_is_refused_instead_of_half_read():
    with pytest.raises(TypeError, match="from_config"):
        FleetArgs.coerce(Config())


@pytest.mark.parametrize(
    ("words", "apart"),
    [([], False), (["agent=random"], False), (["agent=mine:make"], True), (["agent.best_eval_action=true"], True)],
)
def test_evaluation_has_policy_calls_of_its_own_where_the_agent_may_act_differently(
    words: list[str], apart: bool, tmp_path: Path
) -> None:
    assert FleetArgs.from_config(parse_overrides(words), tmp_path).eval_apart == apart
