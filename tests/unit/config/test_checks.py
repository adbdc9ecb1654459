"""Keys that do not go together are refused before anything starts, with a line that names the way out."""

from __future__ import annotations

import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.config.checks import first_update, notes
from dreamfleet.config.load import parse_overrides
from dreamfleet.core.errors import ConfigError
from dreamfleet.roles.replay import make_limiter


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["batch_size=16", "jax.train_devices=[0, 1, 2]"],
            "batch_size=16 cannot be split across the 3 devices of jax.train_devices: set batch_size=15 or another "
            "multiple of 3",
        ),
        (
            ["batch_size=2", "jax.accumulate=4"],
            "batch_size=2 cannot be split into jax.accumulate=4 equal parts: set batch_size=4 or another multiple of 4",
        ),
        (
            ["jax.train_devices=[]"],
            "jax.train_devices is empty: name at least one device, such as jax.train_devices=[0]",
        ),
        (["jax.train_devices=[0, 0]"], "jax.train_devices=[0, 0] must list each device once, starting at 0"),
        (["jax.policy_devices=-1"], "jax.policy_devices=[-1] must list each device once, starting at 0"),
        (["jax.policy_devices=[0, 1]"], "jax.policy_devices=[0, 1]: only one policy device is supported: choose one"),
        (
            ["jax.mock_devices=2", "jax.train_devices=[1, 2]"],
            "jax.train_devices=[1, 2]: device 2 does not exist with jax.mock_devices=2: set "
            "jax.mock_devices=3 or choose other",
        ),
        (
            ["run.steps=1000"],
            "run.steps=1000 is less than one batch of 16 x 64 steps, so nothing would be learned: set "
            "run.steps=2992 or more",
        ),
        (
            ["run.steps=1e5", "run.train_ratio=0.1"],
            "run.steps=100000 ends the run before the first update, which run.train_ratio=0.1 and batches of "
            "16 x 64 steps "
            "allow at step 625680: increase run.steps or run.train_ratio, or use smaller batches",
        ),
        (
            ["agent.dyn.deter=100"],
            "agent.dyn.blocks=8 does not divide agent.dyn.deter=100: set agent.dyn.deter=96 or change agent.dyn.blocks",
        ),
        (["agent.value.bins=254"], "agent.value.bins=254 must be odd: set an odd number, such as 255"),
        (["agent.enc.mults=[2, 0]"], "agent.enc.mults=[2, 0] must be positive numbers, one per layer"),
        (["agent.policy.minstd=2"], "agent.policy.minstd=2 is above agent.policy.maxstd=1: swap"),
        (["agent.retnorm.perclo=95"], "agent.retnorm.perclo=95 must be below agent.retnorm.perchi=95: lower it"),
        (
            ["agent.opt.schedule=cosine"],
            "agent.opt.schedule=cosine ends at update agent.opt.anneal=0, not after agent.opt.warmup=1000: set",
        ),
        (
            ["agent.imag_last=1"],
            "agent.imag_last=1 is too short for the replay critic, which needs two steps: set agent.imag_last=2 or ",
        ),
        (
            ["batch_length=1"],
            "batch_length=1 is too short for the replay critic, which needs two steps: set batch_length=2 or more",
        ),
        (
            ["report_length=1"],
            "report_length=1 is too short for the replay critic, which needs two steps: set report_length=2 or more",
        ),
        (["agent.imag_last=65"], "agent.imag_last=65 exceeds the sequence length of batch_length=64 steps: set "),
        (["run.envs=0"], "run.envs=0 leaves no environments to collect steps: set run.envs to 1 or more"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_overrides(words)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_other_agents_do_not_need_what_dreamer_needs() -> None:
    config = parse_overrides(["agent=random", "run.steps=10", "batch_size=3", "jax.train_devices=[0, 1]"])
    assert (config.agent.name, config.batch_size, config.jax.train_devices) == ("random", 3, (0, 1))


@pytest.mark.parametrize(
    "words",
    [
        ["batch_size=4", "batch_length=8", "report_length=8", "run.train_ratio=32"],
        ["batch_size=3", "batch_length=8", "report_length=8", "run.train_ratio=0.5", "consec_train=2"],
        ["batch_size=2", "batch_length=2", "report_length=2", "run.train_ratio=1"],  # the tolerance is a batch or more
        ["batch_size=3", "batch_length=7", "report_length=7", "run.train_ratio=-1", "replay_context=0"],
    ],
)
def test_the_first_update_comes_when_the_limiter_lets_it(words: list[str]) -> None:
    config = parse_overrides(words)
    limiter = make_limiter(FleetArgs.from_config(config, ""), [0])  # type: ignore[arg-type]
    steps = 0
    while not limiter._may_sample():
        limiter.inserted(1)
        steps += 1
    assert steps == first_update(config)


def test_a_run_may_end_with_its_first_update() -> None:
    words = ["batch_size=4", "batch_length=8", "report_length=8"]
    first = first_update(parse_overrides(words))
    parse_overrides([*words, f"run.steps={first}"])
    with pytest.raises(ConfigError, match="ends the run before the first update"):
        parse_overrides([*words, f"run.steps={first - 1}"])


def test_a_run_that_goes_on_has_its_updates_behind_it() -> None:
    begun = parse_overrides(["batch_size=4", "batch_length=8", "report_length=8", "run.steps=1000"])
    assert parse_overrides(["run.train_ratio=0.01"], begun).run.train_ratio == 0.01


def test_a_policy_batch_that_never_fills_is_worth_a_note() -> None:
    (note,) = notes(parse_overrides(["run.envs=2", "run.eval_envs=1", "run.actor_batch=64"]))
    assert note.startswith("run.actor_batch=64 exceeds the 3 environments of this run")
    assert not list(notes(parse_overrides(["run.envs=2", "run.eval_envs=1", "run.actor_batch=3"])))
    assert not list(notes(parse_overrides(["run.envs=0", "run.remote_envs=true", "run.actor_batch=64"])))
