"""How an observation of Gymnasium is read: as an image, as classes or as numbers.

`READINGS` is the only table of it. The adapter decides by it, `check-env` and the documents show it, and `env.read`
overrules it key by key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym

from dreamfleet.core.errors import ConfigError, EnvError
from dreamfleet.core.spaces import MAX_ONE_HOT, Space
from dreamfleet.core.text.suggestions import closest_names, did_you_mean
from dreamfleet.envs.images import ArrayFn, ImageLayout

IMAGE, CLASSES, NUMBERS = KINDS = ("image", "classes", "numbers")
# Grids of symbols declare 0 to 255 too. They have up to 25 x 25 cells in MiniGrid and 24 x 80 in NetHack; the smallest
# images that environments show have 28 x 28 pixels.
SMALLEST_IMAGE = 28
# The last word of the name of an array of letters, such as `inv_strs`: 55 x 80 of them in NetHack.
LETTERS = {"char", "chars", "letter", "letters", "str", "strs", "string", "strings", "text", "texts"}
MAX_VALUES = 256  # an integer with more of them is a quantity rather than a choice
IMAGE_AXES = (2, 3, 4)
INT32 = np.iinfo(np.int32)


class Unreadable(NamedTuple):
    """Why a space cannot be read in some way, and what else to do than to choose another way."""

    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class Declared:
    """What one space declares, whichever class of Gymnasium it is. Both bounds belong to it."""

    kind: str  # "f", "i" or "b", as of a dtype; integers without a sign are "i" too
    dtype: str
    shape: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray
    text: str  # as Gymnasium writes it
    box: bool
    name: str  # the last part of its key

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width where it may be an image."""
        if len(self.shape) not in IMAGE_AXES:
            return None
        return ImageLayout(self.shape).shape[:2]

    @property
    def as_large_as_an_image(self) -> bool:
        return self.size is not None and min(self.size) >= SMALLEST_IMAGE

    @property
    def is_letters(self) -> bool:
        """Whether it is lines of letters, by its name: their bounds and size may be those of an image."""
        return len(self.shape) == 2 and self.kind == "i" and self.name.lower().rpartition("_")[2] in LETTERS

    @property
    def classes(self) -> int:
        """Of all elements together."""
        return int((self.high - self.low + 1).sum())

    @property
    def in_int32(self) -> bool:
        """Also with one more than the highest value, which a space of integers has to name."""
        return bool(self.low.min() >= INT32.min and self.high.max() < INT32.max)

    def spans(self, low: float, high: float) -> bool:
        return bool((self.low == low).all() and (self.high == high).all())

    def why_not(self, reading: str) -> Unreadable | None:
        """What keeps it from being read so."""
        if reading == CLASSES and self.kind == "f":
            return Unreadable("its floats have no classes")
        if reading == IMAGE and len(self.shape) not in IMAGE_AXES:
            return Unreadable(f"it has the shape {self.shape}, and an image has 2 to 4 axes")
        if reading == IMAGE and not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            return Unreadable("it has no bounds to scale from", "declare them in observation_space")
        return None


def declared(space: Any, what: str, name: str) -> Declared:
    """`what` begins the message about a space that cannot be read."""
    low: Any
    high: Any
    if isinstance(space, gym.Discrete):
        low, high, kind = space.start, int(space.start) + int(space.n) - 1, "i"
    elif isinstance(space, gym.MultiDiscrete):
        low = np.asarray(getattr(space, "start", 0), np.int64)
        high, kind = low + space.nvec - 1, "i"
    elif isinstance(space, gym.MultiBinary) or space.dtype == bool:
        low, high, kind = 0, 1, "b"
    else:
        low, high, kind = space.low, space.high, space.dtype.kind.replace("u", "i")
    if kind not in "fib":
        raise EnvError(f"{what} is a Box of dtype {space.dtype}: use floats, integers or booleans")
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), space.shape) for bound in (low, high))
    dtype, shape = np.dtype(space.dtype).name, tuple(space.shape)
    return Declared(kind, dtype, shape, low, high, str(space), isinstance(space, gym.Box), name)


@dataclass(frozen=True)
class Rule:
    spaces: str  # what it is about, in words
    reading: str
    seen: str  # what the agent gets, in words
    holds: Callable[[Declared], bool]


LARGE = f"2 to 4 axes, height and width of {SMALLEST_IMAGE} or more"
TOO_WIDE = Rule(
    f"`Discrete`, `MultiDiscrete`, `Box` of integers, with more than {MAX_ONE_HOT:,} classes in all",
    NUMBERS,
    "float32 of its shape, with its bounds, which a note says",
    lambda space: space.classes > MAX_ONE_HOT,
)
# The first rule that holds decides.
READINGS = (
    Rule(
        "lines of letters by their name, such as `inv_strs`, from 0 to 255 and as large as an image",
        NUMBERS,
        "float32 of its shape, with its bounds, which a note says",
        lambda space: space.is_letters and space.as_large_as_an_image and space.spans(0, 255),
    ),
    Rule(
        f"`Box` from 0 to 255 of any dtype, with {LARGE}",
        IMAGE,
        "uint8, height x width x channels; floats are rounded, which a note says",
        lambda space: space.as_large_as_an_image and space.kind != "b" and space.spans(0, 255),
    ),
    Rule(
        f"`Box` of floats from 0 to 1, with {LARGE}",
        IMAGE,
        "uint8, height x width x channels; times 255 and rounded, which a note says",
        lambda space: space.as_large_as_an_image and space.kind == "f" and space.spans(0, 1),
    ),
    Rule("other `Box` of floats", NUMBERS, "float32 of its shape, with its bounds", lambda space: space.kind == "f"),
    Rule("`MultiBinary`, `Box` of bool", CLASSES, "bool of its shape", lambda space: space.kind == "b"),
    Rule(
        f"`Box` of integers, one of which has more than {MAX_VALUES} values, or values beyond int32",
        NUMBERS,
        "float32 of its shape, with its bounds; from 16,777,216 on they are rounded",
        lambda space: space.box and (bool((space.high - space.low >= MAX_VALUES).any()) or not space.in_int32),
    ),
    TOO_WIDE,
    Rule(
        "other `Discrete`, `MultiDiscrete`, `Box` of integers",
        CLASSES,
        "int32 of its shape, one-hot for the networks; elements may have unequal numbers of classes",
        lambda space: True,
    ),
)


def rule_of(space: Declared) -> Rule:
    return next(rule for rule in READINGS if rule.holds(space))


@dataclass(frozen=True)
class Reading:
    key: str
    kind: str  # one of KINDS
    declared: Declared
    rule: Rule | None  # None: the run's own choice

    def values(self, what: str) -> Space:
        """What its values are before an image is scaled, laid out and resized."""
        space = self.declared
        if self.kind != CLASSES:
            with np.errstate(over="ignore"):  # a bound that float32 cannot hold is none
                return Space(np.float32, space.shape, space.low.astype(np.float32), space.high.astype(np.float32))
        if space.kind == "b":
            return Space(bool, space.shape)
        if not space.in_int32:
            raise EnvError(
                f"{what} is {space.text}, with values that int32 cannot hold: declare it as a Box of floats, or set "
                f"env.read={{{self.key}: {NUMBERS}}}"
            )
        return Space(np.int32, space.shape, space.low.astype(np.int64), space.high.astype(np.int64) + 1)

    @property
    def range(self) -> tuple[float, float] | None:
        """Of an image, what becomes 0 and what 255. None where the values are such bytes already, without a check."""
        space = self.declared
        if space.dtype == "uint8" and space.spans(0, 255):
            return None
        return float(space.low.min()), float(space.high.max())

    @property
    def others(self) -> list[str]:
        """What `env.read` may say instead, without classes that are more than an agent takes."""
        possible = [kind for kind in KINDS if kind != self.kind and self.declared.why_not(kind) is None]
        return [kind for kind in possible if kind != CLASSES or self.declared.classes <= MAX_ONE_HOT]

    def to_json(self) -> dict[str, Any]:
        by = self.rule.spaces.replace("`", "") if self.rule else "env.read"
        text = {"declared": self.declared.text, "reading": self.kind, "by": by}
        classes = self.declared.classes if self.kind == CLASSES else None
        return {**text, "shape": list(self.declared.shape), "classes": classes, "others": self.others}


def scale_to_bytes(low: float, high: float) -> ArrayFn:
    """From `low` to `high` becomes from 0 to 255, rounded. Values beyond wrap around: check them before."""
    factor = 255 / (high - low) if high > low else 0.0
    return lambda image: np.rint((image - low) * factor).astype(np.uint8)


def choose_readings(
    spaces: Mapping[str, Declared], name: str, read: Mapping[str, str], notes: list[str]
) -> dict[str, Reading]:
    """By `read`, which is `env.read`, where it names the key, else by the table. `notes` takes what a user should know
    of what the table decides.
    """
    for key in read:
        if key not in spaces:
            hint = did_you_mean(closest_names(key, spaces), f"it has {', '.join(spaces)}")
            raise ConfigError(f"env.read names {key!r}, which {name} does not show: {hint}")
    found = {}
    for key, space in spaces.items():
        if key in read:
            _check(key, space, read[key])
            found[key] = Reading(key, read[key], space, None)
        else:
            rule = rule_of(space)
            found[key] = Reading(key, rule.reading, space, rule)
            notes += _notes(found[key])
    return found


def _check(key: str, space: Declared, reading: str) -> None:
    setting = f"env.read={{{key}: {reading}}}"
    if reading not in KINDS:
        raise ConfigError(f"{setting}: write {_either(KINDS)}")
    if refusal := space.why_not(reading):
        possible = [kind for kind in KINDS if space.why_not(kind) is None]
        remedy = refusal.remedy or f"write {_either(possible)}"
        raise ConfigError(f"{setting}: {key!r} is {space.text}: {refusal.reason}: {remedy}")


def _either(words: Any) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else str(last)


def _notes(reading: Reading) -> list[str]:
    """What may surprise of a reading that nobody asked for."""
    key, space = reading.key, reading.declared
    if space.as_large_as_an_image:
        return _notes_on_images(reading)
    if reading.rule is not TOO_WIDE:
        return []
    return [
        f"observation {key!r} has {space.classes:,} classes in all, more than {MAX_ONE_HOT:,}, and is read as "
        f"{space.low.size:,} number{'s' * (space.low.size != 1)}: declare the range that its values have"
    ]


def _notes_on_images(reading: Reading) -> list[str]:
    key, space = reading.key, reading.declared
    assert space.size
    height, width = space.size
    low, high = space.low.min(), space.high.max()
    bounded = np.isfinite(space.low).all() and np.isfinite(space.high).all()
    bounds = f"from {low:g} to {high:g}" if bounded else "without bounds"
    about = f"observation {key!r} of {height}x{width} {space.dtype} {bounds} is read as"
    lost = "each value becomes one of 256, finer differences are lost"
    if reading.kind == IMAGE:
        return [f"{about} an image: {lost}; env.read={{{key}: numbers}} keeps them"] if space.kind == "f" else []
    if not bounded:
        return [f"{about} {reading.kind}: if it is an image, declare its bounds, 0 to 1 or 0 to 255"]
    fine = f", where {lost}" if space.kind == "f" or high - low >= MAX_VALUES else ""
    return [f"{about} {reading.kind}: env.read={{{key}: image}} reads it as an image, scaled to 0 to 255{fine}"]
