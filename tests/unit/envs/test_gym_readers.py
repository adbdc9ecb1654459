"""Whether an observation is read as an image, as classes or as numbers: by rule, or as the run chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from dreamfleet.core.errors import ConfigError, EnvError, SpaceMismatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.checks import CheckBatch, CheckSpaces
from dreamfleet.envs.document import document
from dreamfleet.envs.gym.env import GymnasiumEnv
from dreamfleet.envs.gym.readers import READINGS
from dreamfleet.envs.gym.vector_env import GymnasiumBatch
from dreamfleet.envs.options import EnvOptions
from support.gym_fakes import Recorder

BEGIN = {"reset": np.True_}
GO = {"action": np.int32(0), "reset": np.False_}


def wrap(space: Any, **read: str) -> tuple[GymnasiumEnv, Recorder, list[str]]:
    notes: list[str] = []
    inner = Recorder(space)
    return GymnasiumEnv(inner, "mine", EnvOptions(read=read), 0, notes), inner, notes


def seen(space: Any, **read: str) -> Space:
    """What the agent sees of an observation that is this space alone."""
    (found,) = (space for key, space in wrap(space, **read)[0].obs_space.items() if key in ("obs", "image"))
    return found


def integers(high: int, *shape: int, dtype: Any = np.uint8, low: int = 0) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


def floats(low: float, high: float, *shape: int) -> spaces.Box:
    return spaces.Box(low, high, shape, np.float32)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (integers(9, 24, 18), Space(np.int32, (24, 18), 0, 10)),  # the board of tetris_gymnasium
        (integers(1, 24, 18), Space(np.int32, (24, 18), 0, 2)),  # and its mask
        (integers(2, 3, 3), Space(np.int32, (3, 3), 0, 3)),
        (integers(1, 8, 8, 20), Space(np.int32, (8, 8, 20), 0, 2)),
        (integers(5, 4, 8, 8, 3), Space(np.int32, (4, 8, 8, 3), 0, 6)),
        (integers(255, 7, 7, 3), Space(np.int32, (7, 7, 3), 0, 256)),  # MiniGrid's symbols
        (integers(254, 64, 64), Space(np.float32, (64, 64), 0, 254)),  # one less than an image, and too many classes
    ],
)
def test_boards_and_planes_keep_their_size(space: Any, expected: Space) -> None:
    assert seen(space) == expected


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (integers(255, 210, 160, 3), (64, 64, 3)),  # ALE
        (integers(255, 64, 64, 3), (64, 64, 3)),  # Procgen
        (integers(255, 96, 96, 3), (96, 96, 3)),  # PushT
        (integers(255, 28, 28), (64, 64, 1)),
        (integers(255, 4, 84, 84), (64, 64, 4)),  # stacked frames
        (integers(255, 64, 64, 3, dtype=np.int32), (64, 64, 3)),
        (floats(0, 255, 64, 64, 3), (64, 64, 3)),
        (floats(0, 1, 3, 48, 64), (48, 64, 3)),
    ],
)
def test_what_declares_an_image_and_is_large_enough_is_one(space: Any, shape: tuple[int, ...]) -> None:
    env, _, _ = wrap(space)
    assert env.obs_space["image"] == Space(np.uint8, shape)
    assert CheckSpaces(env, "mine").step(BEGIN)["image"].shape == shape


@pytest.mark.parametrize("space", [integers(255, 27, 64), integers(255, 25, 25, 3), integers(255, 24, 80)])
def test_grids_of_symbols_are_no_images(space: Any) -> None:
    """The largest of MiniGrid have 25 x 25 cells, a terminal of NetHack 24 x 80 characters."""
    assert seen(space).dtype in (np.int32, np.float32)


@pytest.mark.parametrize(
    ("space", "count", "classes"),
    [
        (integers(255, 2835), 2835, "725,760"),  # MiniGrid's flat observation
        (integers(255, 300), 300, "76,800"),
        (spaces.Discrete(10**6), 1, "1,000,000"),
        (spaces.MultiDiscrete([60_000, 60_000]), 2, "120,000"),
        (spaces.Discrete(2**40), 1, "1,099,511,627,776"),
    ],
)
def test_more_classes_than_an_agent_takes_become_numbers_with_a_note(space: Any, count: int, classes: str) -> None:
    env, inner, notes = wrap(space)
    (note,) = notes
    assert note.startswith(
        f"observation 'obs' has {classes} classes in all, more than 65,536, and is read as {count:,} num"
    )
    assert env.obs_space["obs"].dtype == np.float32
    found = CheckSpaces(env, "mine").step(BEGIN)["obs"]
    np.testing.assert_array_equal(found, np.asarray(inner.returned[-1], np.float32))


def test_as_many_classes_as_an_agent_takes_stay_classes() -> None:
    env, _, notes = wrap(spaces.Discrete(2**16, start=5))
    assert (env.obs_space["obs"], notes) == (Space(np.int32, (), 5, 5 + 2**16), [])
    assert seen(integers(255, 256)) == Space(np.int32, (256,), 0, 256)
    assert seen(spaces.Discrete(2**16 + 1)) == Space(np.float32, (), 0, 2**16)


class Shows(Recorder):
    """Returns `value` instead of a draw from its space."""

    value: Any = None

    def _draw(self) -> Any:
        return super()._draw() if self.value is None else self.value


@pytest.mark.parametrize(
    ("space", "reading", "bad", "message"),
    [
        (integers(5, 4, 4, 3), None, np.full((4, 4, 3), 200, np.uint8), r"value 200 at \S.* above 5"),
        (integers(5, 4, 4, 3), "numbers", np.full((4, 4, 3), 200, np.uint8), r"value 200\S* at \S.* above 5"),
        (integers(5, 4, 4, 3), "image", np.full((4, 4, 3), 200, np.uint8), r"value 200\S* at \S.* above 5"),
        (integers(9, 4, 4, low=3), None, np.full((4, 4), 2, np.uint8), r"value 2 at \S.* below 3"),
        (floats(0, 1, 48, 48), None, np.full((48, 48), 1.5, np.float32), r"value 1\.5 at \S.* above 1"),
        (floats(0, 1, 48, 48), None, np.full((48, 48), np.nan, np.float32), "NaN"),
        (floats(0, 1, 48, 48), None, np.zeros((48, 47), np.float32), r"shape \(48, 47\) instead of \(48, 48\)"),
        (integers(255, 64, 64, dtype=np.int64), None, np.full((64, 64), 256), r"value 256\S* at \S.* above 255"),
    ],
)
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_value_out_of_bounds_is_named_whatever_the_reading(
    space: Any, reading: str | None, bad: Any, message: str, vectorised: bool
) -> None:
    options = EnvOptions(read={"obs": reading} if reading else {})
    if not vectorised:
        inner = Shows(space)
        env: Any = CheckSpaces(GymnasiumEnv(inner, "mine", options, 0, []), "mine")
        env.step(BEGIN)
        inner.value = bad
        with pytest.raises(SpaceMismatch, match=f"mine: observation '(obs|image)' has {message}"):
            env.step(GO)
        return

    class Two(SyncVectorEnv):
        bad: Any = None

        def step(self, actions: Any) -> Any:
            obs, *rest = super().step(actions)
            if self.bad is not None:
                obs = np.stack([obs[0].astype(self.bad.dtype)[..., : self.bad.shape[-1]], self.bad])
            return obs, *rest

    many = Two([lambda: Recorder(space)] * 2)
    batch = CheckBatch(GymnasiumBatch(many, "mine", options, 0, []), "mine")
    batch.step({"action": np.zeros(2, np.int32), "reset": np.ones(2, bool)})
    many.bad = bad
    with pytest.raises(SpaceMismatch, match=f"mine: observation '(obs|image)' has ({message}.* in row 1|shape)"):
        batch.step({"action": np.zeros(2, np.int32), "reset": np.zeros(2, bool)})
    batch.close()


def test_floats_become_bytes_by_rounding() -> None:
    """Those that were bytes before come back exactly; finer differences are lost, and a note says so."""
    env, inner, notes = wrap(floats(0, 1, 48, 48))
    (note,) = notes
    assert note == (
        "observation 'image' of 48x48 float32 from 0 to 1 is read as an image: each value becomes one of 256, finer "
        "differences are lost; env.read={image: numbers} keeps them"
    )
    obs = env.step(BEGIN)["image"]
    wanted = np.floor(np.asarray(inner.returned[-1], np.float64) * 255 + 0.5)
    np.testing.assert_array_equal(obs[..., 0], wanted)
    bytes_before = np.arange(256, dtype=np.uint8).repeat(9).reshape(48, 48)
    shown = Shows(floats(0, 1, 48, 48))
    shown.value = bytes_before / np.float32(255)
    again = GymnasiumEnv(shown, "mine", EnvOptions(), 0, []).step(BEGIN)["image"]
    np.testing.assert_array_equal(again[..., 0], bytes_before)


@pytest.mark.parametrize(
    ("space", "reading", "reason"),
    [
        (integers(65535, 64, 64, dtype=np.uint16), "numbers", "of 64x64 uint16 from 0 to 65535"),
        (integers(1, 48, 48), "classes", "of 48x48 uint8 from 0 to 1"),
        (floats(0, 10, 64, 64, 1), "numbers", "of 64x64 float32 from 0 to 10"),
        (floats(-np.inf, np.inf, 64, 64, 3), "numbers", "of 64x64 float32 without bounds"),
    ],
)
def test_what_is_as_large_as_an_image_and_read_otherwise_is_noted(space: Any, reading: str, reason: str) -> None:
    (note,) = wrap(space)[2]
    assert note.startswith(f"observation 'obs' {reason} is read as {reading}")
    assert "env.read={obs: image}" in note or "declare its bounds" in note
    assert wrap(space, obs=reading)[2] == []  # it is what the run asks for


def test_few_values_beyond_int32_become_numbers() -> None:
    assert seen(integers(2**40 + 3, 2, dtype=np.int64, low=2**40)).dtype == np.float32


def test_a_board_of_usual_size_needs_no_note() -> None:
    assert wrap(spaces.Dict({"board": integers(9, 24, 18), "speed": floats(-1, 1, 3)}))[2] == []


def test_depth_of_16_bits_is_scaled_from_its_declared_range_where_the_run_reads_it_as_an_image() -> None:
    inner = Shows(integers(5000, 48, 48, dtype=np.uint16))
    inner.value = np.linspace(0, 5000, 48 * 48).round().astype(np.uint16).reshape(48, 48)
    env = GymnasiumEnv(inner, "mine", EnvOptions(read={"obs": "image"}), 0, [])
    obs = env.step(BEGIN)["obs"][..., 0]
    assert np.abs(obs - inner.value.astype(np.float64) * 255 / 5000).max() <= 0.5 + 1e-4
    assert (obs[0, 0], obs[-1, -1]) == (0, 255)


@pytest.mark.parametrize(
    ("space", "reading", "expected"),
    [
        (integers(9, 12, 10), "numbers", Space(np.float32, (12, 10), 0, 9)),
        (integers(9, 12, 10), "image", Space(np.uint8, (64, 64, 1))),
        (integers(255, 64, 64, 3), "numbers", Space(np.float32, (64, 64, 3), 0, 255)),
        (integers(1000, 3, dtype=np.int64), "classes", Space(np.int32, (3,), 0, 1001)),
        (spaces.Discrete(7, start=2), "numbers", Space(np.float32, (), 2, 8)),
        (spaces.MultiBinary([4, 4]), "image", Space(np.uint8, (64, 64, 1))),
        (spaces.MultiBinary([4, 4]), "numbers", Space(np.float32, (4, 4), 0, 1)),
        (spaces.MultiBinary([4, 4]), "classes", Space(bool, (4, 4))),
    ],
)
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_run_chooses_another_reading(space: Any, reading: str, expected: Space, vectorised: bool) -> None:
    options = EnvOptions(read={"part": reading})
    whole = spaces.Dict({"part": space})
    if vectorised:
        batch = GymnasiumBatch(SyncVectorEnv([lambda: Recorder(whole)] * 3), "mine", options, 0, [])
        assert batch.obs_space["part"] == expected
        obs = CheckBatch(batch, "mine").step({"action": np.zeros(3, np.int32), "reset": np.ones(3, bool)})
        assert obs["part"].shape == (3, *expected.shape)
        batch.close()
        return
    inner = Recorder(whole)
    env = GymnasiumEnv(inner, "mine", options, 0, [])
    assert env.obs_space["part"] == expected
    assert np.shape(CheckSpaces(env, "mine").step(BEGIN)["part"]) == expected.shape


def test_a_board_read_as_an_image_uses_all_of_its_brightness() -> None:
    inner = Shows(integers(3, 2, 2))
    inner.value = np.array([[0, 1], [2, 3]], np.uint8)
    env = GymnasiumEnv(inner, "mine", EnvOptions(read={"obs": "image"}), 0, [])
    corners = env.step(BEGIN)["obs"][[0, 0, -1, -1], [0, -1, 0, -1], 0]
    assert corners.tolist() == [0, 85, 170, 255]


@pytest.mark.parametrize(
    ("read", "message"),
    [
        ({"bord": "classes"}, r"env.read names 'bord', which mine does not show: did you mean 'board'\?"),
        ({"xyz": "classes"}, r"env.read names 'xyz', which mine does not show: it has board, speed"),
        ({"speed": "classes"}, r"env.read={speed: classes}: .* floats have no classes: write numbers"),
        ({"speed": "image"}, r"env.read={speed: image}: .*\(3,\).* an image has 2 to 4 axes: write numbers"),
        ({"wide": "image"}, r"env.read={wide: image}: .* no bounds to scale from: declare them"),
        ({"board": "pixels"}, r"env.read={board: pixels}: write image, classes or numbers"),
    ],
)
def test_a_reading_that_cannot_be_is_an_error_with_the_way_out(read: dict[str, str], message: str) -> None:
    parts: dict[str, Any] = {"board": integers(9, 12, 10), "speed": floats(-1, 1, 3)}
    if "wide" in read:
        parts["wide"] = floats(-np.inf, np.inf, 8, 8)
    with pytest.raises(ConfigError, match=message):
        wrap(spaces.Dict(parts), **read)


def test_the_documents_have_the_table_that_decides() -> None:
    page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text()
    assert document(page) == page, "run scripts/document"
    assert all(f"| {rule.spaces} | {rule.reading} | {rule.seen} |\n" in page for rule in READINGS)


def test_classes_beyond_int32_are_refused() -> None:
    with pytest.raises(EnvError, match="int32 cannot hold"):
        wrap(spaces.Discrete(4, start=2**40))
    with pytest.raises(EnvError, match="int32 cannot hold"):
        wrap(spaces.Discrete(2**40), obs="classes")


@pytest.mark.parametrize("key", ["inv_strs", "tty_chars", "text", "Letters"])
def test_rows_of_letters_are_no_image_whatever_their_size(key: str) -> None:
    """NetHack's inventory has 55 lines of 80 letters, declared as bytes from 0 to 255."""
    whole = spaces.Dict({"inner": spaces.Dict({key: integers(255, 55, 80)}), "grey": integers(255, 55, 80)})
    env, _, notes = wrap(whole)
    assert env.obs_space[f"inner/{key}"] == Space(np.float32, (55, 80), 0, 255)
    assert env.obs_space["grey"] == Space(np.uint8, (64, 64, 1))
    assert any(f"env.read={{inner/{key}: image}}" in note for note in notes)
    assert wrap(whole, **{f"inner/{key}": "image"})[0].obs_space[f"inner/{key}"].dtype == np.uint8


@pytest.mark.parametrize("key", ["text_image", "chart", "strs"])
def test_a_name_alone_makes_no_letters_of_an_image(key: str) -> None:
    shape = (64, 64, 3) if key == "strs" else (64, 64)
    assert wrap(spaces.Dict({key: integers(255, *shape)}))[0].obs_space[key].dtype == np.uint8
