"""Atari against a plain loop over ale-py that shares no code with it, and its options one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ale_py import ALEInterface, LoggerMode, roms
from PIL import Image

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites import atari, atari100k

PRESETS = {"atari": atari, "atari100k": atari100k}


def plain_loop(
    preset: str, seed: int, choices: np.ndarray, cap: int = 108_000, rom: str = "pong"
) -> Iterator[tuple[np.ndarray, float, bool, bool, bool]]:
    """Image, reward, first, last and terminal of each step. `choices` are numbers in [0, 1) that pick an action."""
    ale = ALEInterface()
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", 0.25 if preset == "atari" else 0.0)
    ale.loadROM(roms.get_rom_path(rom))
    actions = ale.getLegalActionSet() if preset == "atari" else ale.getMinimalActionSet()
    noops = np.random.default_rng(seed)

    def picture(last: np.ndarray, before: np.ndarray) -> np.ndarray:
        both = np.maximum(last, before)
        if preset == "atari100k":
            return np.asarray(Image.fromarray(both).resize((64, 64), Image.BILINEAR))
        small = np.asarray(Image.fromarray(both).resize((96, 96), Image.BILINEAR)).astype(int)
        return ((small[:, :, :1] * 299 + small[:, :, 1:2] * 587 + small[:, :, 2:] * 114) // 1000).astype(np.uint8)

    finished = True
    for choice in choices:
        if finished:
            ale.reset_game()
            for _ in range(noops.integers(0, 31)):
                ale.act(0)
                if ale.game_over():
                    ale.reset_game()
            before = last = ale.getScreenRGB()
            finished, used = False, 0
            yield picture(last, before), 0.0, True, False, False
            continue
        reward = 0
        for _ in range(4):
            reward += ale.act(actions[int(choice * len(actions))])
            before, last = last, ale.getScreenRGB()
            used += 1
            if ale.game_over() or used == cap:
                finished = True
                break
        yield picture(last, before), float(reward), False, finished, ale.game_over()


def compare(preset: str, seed: int, steps: int, rom: str = "pong", **kwargs: Any) -> dict[str, int]:
    """Steps both and counts what happened on the way."""
    env = PRESETS[preset].make(rom, EnvOptions(), seed, **kwargs)
    choices = np.random.default_rng(7).random(steps)
    count = env.act_space["action"].high
    seen = {"first": 0, "last": 0, "terminal": 0, "rewards": 0, "images": 0}
    previous = None
    expected = plain_loop(preset, seed, choices, kwargs.get("length", 108_000), rom)
    for index, (choice, (image, reward, first, last, terminal)) in enumerate(zip(choices, expected, strict=True)):
        obs = env.step({"action": np.int32(choice * count), "reset": np.bool_(False)})
        assert obs["image"].dtype == np.uint8
        assert np.array_equal(obs["image"], image), index
        flags = (obs["is_first"], obs["is_last"], obs["is_terminal"])
        assert (float(obs["reward"]), *map(bool, flags)) == (reward, first, last, terminal), index
        happened = {"first": first, "last": last, "terminal": terminal, "rewards": reward != 0}
        happened["images"] = previous is None or not np.array_equal(previous, image)
        seen = {key: value + bool(happened[key]) for key, value in seen.items()}
        previous = image
    return seen


@pytest.mark.parametrize("preset", PRESETS)
def test_2000_steps_of_pong_equal_a_plain_loop(preset: str) -> None:
    seen = compare(preset, 12345, 2000)
    assert seen["first"] >= 2  # so that ends, resets and a second draw of noops were compared
    assert seen["last"] == seen["terminal"] >= 1
    assert seen["rewards"] > 20
    assert seen["images"] > 1500


@pytest.mark.parametrize("preset", PRESETS)
def test_the_frame_cap_truncates_and_does_not_terminate(preset: str) -> None:
    seen = compare(preset, 3, 60, length=50)  # 50 frames are 13 steps, the last of 2 frames
    assert (seen["last"], seen["terminal"]) == (4, 0)


def test_games_that_end_within_a_step_equal_a_plain_loop() -> None:
    seen = compare("atari", 5, 1200, "breakout")
    assert seen["terminal"] >= 3


def run(env: atari.Atari, steps: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    actions = env.act_space["action"].sample(rng, (steps,))
    return [env.step({"action": action, "reset": np.bool_(False)}) for action in actions]


def test_presets_have_their_published_spaces() -> None:
    by_name = {name: suite.make("pong", EnvOptions(), 0) for name, suite in PRESETS.items()}
    shapes = {name: env.obs_space["image"].shape for name, env in by_name.items()}
    assert shapes == {"atari": (96, 96, 1), "atari100k": (64, 64, 3)}
    assert {name: int(env.act_space["action"].high) for name, env in by_name.items()} == {"atari": 18, "atari100k": 6}
    assert (len(atari.tasks()), len(atari100k.tasks())) == (57, 26)
    assert set(atari100k.tasks()) < set(atari.tasks()) < set(roms.get_all_rom_ids())


def test_a_seed_repeats_and_another_differs() -> None:
    one, same, other = (run(atari.make("pong", EnvOptions(), seed), 200) for seed in (1, 1, 2))
    assert all(np.array_equal(a["image"], b["image"]) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a["image"], b["image"]) for a, b in zip(one, other, strict=True))


def test_size_repeat_and_filter_come_from_the_options() -> None:
    env = atari.make("pong", EnvOptions(size=(48, 64), repeat=1, resize="area"), 0, noops=0, gray=False)
    assert [obs["image"].shape for obs in run(env, 2)] == [(48, 64, 3)] * 2
    bilinear = atari.make("pong", EnvOptions(size=(48, 64), repeat=1), 0, noops=0, gray=False)
    assert not np.array_equal(run(env, 1)[0]["image"], run(bilinear, 1)[0]["image"])


def test_a_lost_life_ends_the_episode_only_where_asked() -> None:
    def first_end(lives: str) -> int:
        env = atari.make("breakout", EnvOptions(), 0, lives=lives, sticky=False)
        for index in range(2000):
            if env.step({"action": np.int32(1), "reset": np.bool_(False)})["is_terminal"]:
                return index
        raise AssertionError("no end")

    assert first_end("reset") < first_end("unused")


def test_clipped_rewards_are_signs() -> None:
    plain, clipped = (run(atari.make("ms_pacman", EnvOptions(), 0, clip_reward=clip), 100) for clip in (False, True))
    rewards = [float(obs["reward"]) for obs in plain]
    assert max(rewards) >= 10
    assert [float(obs["reward"]) for obs in clipped] == [float(np.sign(reward)) for reward in rewards]


def test_autostart_serves_the_ball() -> None:
    waiting, started = (
        atari.make("breakout", EnvOptions(), 0, autostart=start, noops=0, sticky=False) for start in (False, True)
    )
    noop = {"action": np.int32(0), "reset": np.bool_(False)}
    for env in (waiting, started):
        env.step(noop)
    pairs = [(waiting.step(noop)["image"], started.step(noop)["image"]) for _ in range(30)]
    assert all(np.array_equal(pairs[0][0], image) for image, _ in pairs)  # nothing moves before FIRE
    assert not all(np.array_equal(pairs[0][1], image) for _, image in pairs)


@pytest.mark.parametrize(
    ("suite", "task", "kwargs", "message"),
    [
        ("atari", "pongg", {}, "suite 'atari' has no task 'pongg': did you mean atari:pong?"),
        ("atari100k", "ms_pac_man", {}, "did you mean atari100k:ms_pacman?"),
        (
            "atari",
            "pong",
            {"lives": "discount"},
            r"atari:pong: env.kwargs.lives='discount' is not one of unused, reset",
        ),
        ("atari", "pong", {"actions": "few"}, "'few' is not one of all, needed"),
        ("atari", "pong", {"pooling": 0}, "pooling and length are at least 1"),
    ],
)
def test_bad_input_is_named(suite: str, task: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        PRESETS[suite].make(task, EnvOptions(), 0, **kwargs)


def test_james_bond_has_both_spellings() -> None:
    for name in ("james_bond", "jamesbond"):
        assert atari.make(name, EnvOptions(), 0).act_space["action"].high == 18
