"""What is said, and refused, about memory and disk before a run starts."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dreamfleet.config.load import parse_overrides
from dreamfleet.core.errors import ConfigError, EnvError, EnvFailed
from dreamfleet.core.spaces import Space
from dreamfleet.launch import preflight
from dreamfleet.launch.env_probe import EnvSpaces, ask_spaces
from dreamfleet.supervision.failures import details
from dreamfleet.supervision.machine import memory_bytes

SPACES = EnvSpaces(
    {"image": Space(np.uint8, (1000,)), "reward": Space(np.float32), "log/x": Space(np.float32)},
    {"action": Space(np.int32), "reset": Space(bool)},
)  # 1008 bytes a step


@pytest.fixture
def check(monkeypatch, tmp_path, capsys):
    def run(*overrides: str, memory: int = 10**12, disk: int = 10**12) -> str:
        monkeypatch.setattr(preflight, "ask_spaces", lambda config, timeout_s: SPACES)
        monkeypatch.setattr(preflight, "free_memory", lambda: memory)
        monkeypatch.setattr(preflight, "free_disk", lambda folder: disk)
        preflight.check_replay_fits(parse_overrides(["agent=random", *overrides]), tmp_path)
        return str(capsys.readouterr().err)

    return run


def test_one_line_says_what_replay_will_take(check):
    line = check("run.steps=1e6", "run.eval_envs=0", memory=20 * 10**9, disk=30 * 10**9)
    assert line == (
        "starting: replay will take up to 1.1 GB of memory and 1.0 GB of disk for 1000000 steps of 1008 bytes; "
        "20.0 GB and 30.0 GB are free\n"
    )


def test_evaluation_counts_by_its_environments(check):
    assert "for 1250000 steps" in check("run.steps=1e6", "run.envs=16", "run.eval_envs=4", "replay.size=5e6")


@pytest.mark.parametrize(
    ("overrides", "free", "message"),
    [
        (
            ["run.eval_envs=0"],
            {"memory": 10**9},
            r"replay\.size=5e6 needs 5\.4 GB of memory, 1\.0 GB are free: set rep",
        ),
        (["run.eval_envs=0"], {"disk": 10**9}, r"replay\.size=5e6 needs 5\.2 GB on the disk of .*, 1\.0 GB are free"),
        (
            ["run.eval_envs=0", "run.steps=2e6"],
            {"memory": 10**9},
            r"replay\.size=5e6 with run\.steps=2e6 needs 2\.1 GB",
        ),
        (
            ["run.eval_envs=0", "replay.size_bytes=2e9"],
            {"memory": 10**9},
            r"with replay\.size_bytes=2e9 needs 2\.1 GB of memory, 1\.0 GB are free: set a smaller replay\.size_b",
        ),
    ],
)
def test_a_machine_with_less_is_refused_with_numbers_and_keys(check, overrides, free, message):
    with pytest.raises(ConfigError, match=message):
        check(*overrides, **free)


def test_a_limit_in_bytes_lets_a_large_replay_start(check):
    assert "starting" in check("run.eval_envs=0", "replay.size_bytes=1e9", memory=2 * 10**9)


def test_a_limit_below_two_chunks_for_each_environment_is_refused(check):
    # 32 chunks of 1024 steps of 1008 bytes.
    with pytest.raises(
        ConfigError, match=r"size_bytes=3\.3e7 is less than two chunk.* set replay\.size_bytes=33030144"
    ):
        check("run.eval_envs=0", "replay.size_bytes=3.3e7")
    assert "starting" in check("run.eval_envs=0", "replay.size_bytes=33030144")
    with pytest.raises(ConfigError, match=r"of which the eval replay gets a tenth.*each of 4 env.*size_bytes=82575360"):
        check("run.eval_envs=4", "replay.size_bytes=8e7")


def test_a_small_replay_for_many_environments_is_refused(check):
    # 98 chunks for the steps and 512 more.
    refusal = (
        r"replay\.size=1e5 has too few chunks of 1024 steps for 320 env.* two each: .*larger "
        r"replay\.size, a smaller"
    )
    with pytest.raises(ConfigError, match=refusal):
        check("run.envs=320", "run.eval_envs=0", "replay.size=1e5")
    assert "starting" in check("run.envs=305", "run.eval_envs=0", "replay.size=1e5")
    assert "starting" in check("run.envs=320", "run.eval_envs=0", "replay.size=1e5", "replay.chunksize=512")
    with pytest.raises(ConfigError, match=r"replay\.size=1e5, of which the eval replay gets a tenth, has too few"):
        check("run.eval_envs=270", "replay.size=1e5")


def test_a_resumed_run_counts_what_it_has(monkeypatch, check):
    monkeypatch.setattr(preflight, "steps_before", lambda folder: 3_000_000)
    assert "for 3000000 steps" in check("run.steps=1e6", "run.eval_envs=0")


def test_what_the_run_has_on_disk_already_counts_as_free(tmp_path):
    before = preflight.free_disk(tmp_path)
    (tmp_path / "replay" / "train").mkdir(parents=True)
    with (tmp_path / "replay" / "train" / "x").open("wb") as file:
        file.truncate(2**40)  # sparse: it takes no room
    assert preflight.free_disk(tmp_path) > before + 2**39


def test_a_replay_elsewhere_is_not_this_machines_business(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(preflight, "ask_spaces", lambda config, timeout_s: pytest.fail("asked"))
    preflight.check_replay_fits(parse_overrides(["run.remote_replay=true"]), tmp_path)
    assert capsys.readouterr().err == ""


def test_an_environment_that_cannot_be_made_is_left_to_fail_in_its_role(monkeypatch, tmp_path, capsys):
    def fail(config, timeout_s):
        raise EnvError("no simulator")

    monkeypatch.setattr(preflight, "ask_spaces", fail)
    preflight.check_replay_fits(parse_overrides([]), tmp_path)
    assert capsys.readouterr().err == ""


def test_spaces_come_from_a_process_of_their_own():
    spaces = ask_spaces(parse_overrides(["env.kwargs.size=8"]), 60.0)
    assert spaces.obs["image"] == Space(np.uint8, (8, 8, 3))
    assert spaces.act["action"] == Space(np.int32, (), 0, 5)


def test_an_environment_that_cannot_be_made_says_why_before_anything_starts(tmp_path):
    said = r"'support.user_envs:raising' cannot be made: ValueError: the simulator is not installed, "
    said += r"raised at .*user_envs.py:"
    with pytest.raises(EnvFailed, match=said) as raised:
        preflight.check_replay_fits(parse_overrides(["env=support.user_envs:raising"]), tmp_path)
    printed = details(raised.value)
    assert printed.startswith("Traceback")
    assert printed.endswith("ValueError: the simulator is not installed\n")


def test_an_environment_that_takes_too_long_is_given_up():
    with pytest.raises(EnvError, match=r"'dummy' was not made within 0\.001 s"):
        ask_spaces(parse_overrides([]), 0.001)


def test_latents_of_the_agent_count(check):
    without = check("replay.size=1e5")
    with_latents = check("agent=dreamer", "replay.size=1e5")
    size = [int(re.search(r"steps of (\d+) bytes", text)[1]) for text in (without, with_latents)]
    assert size[1] - size[0] == 2 * 2048 + 32


def test_what_may_not_be_meant_is_noted(check):
    said = check("run.envs=2", "run.eval_envs=0", "run.actor_batch=64").splitlines()
    assert said[0].startswith("starting: run.actor_batch=64 exceeds the 2 environments of this run")


def test_memory_that_files_take_in_a_container_counts_as_free(tmp_path):
    for name, text in (("max", "5000"), ("current", "4000"), ("stat", "anon 1000\ninactive_file 3000\nshmem 0")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory_bytes(tmp_path) == (5000, 4000)
