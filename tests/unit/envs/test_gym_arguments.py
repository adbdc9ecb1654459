"""Lists of a configuration become tuples where a callable asks for tuples."""

from __future__ import annotations

import typing
from typing import Any

import gymnasium
import pytest

from dreamfleet.envs.gym.arguments import with_tuples
from dreamfleet.envs.registry import make_env
from support import gym_fakes

got: list[Any] = []


def united(a: int | tuple[int, ...]) -> None: ...
def optional(a: typing.Optional[typing.Tuple[int, int]]) -> None: ...  # noqa: UP006, UP045
def by_default(a=(1, 2)) -> None: ...
def of_tuples(a: list[tuple[int, int]]) -> None: ...
def sequence(a: typing.Sequence[int]) -> None: ...
def plain(a) -> None: ...
def broken(a: "no type (") -> None: ...  # type: ignore  # noqa: F722
def any_name(**kwargs: tuple[int, ...]) -> None: ...


def old_style(a) -> None: ...


old_style.__annotations__["a"] = typing.Union[int, typing.Tuple[int, ...]]  # noqa: UP006, UP007


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (united, (3, 4)),
        (optional, (3, 4)),
        (by_default, (3, 4)),
        (old_style, (3, 4)),
        (of_tuples, [3, 4]),
        (sequence, [3, 4]),
        (plain, [3, 4]),
        (broken, [3, 4]),
        (any_name, [3, 4]),
        (dict.get, [3, 4]),
    ],
)
def test_a_list_becomes_a_tuple_where_the_parameter_is_one(factory: Any, expected: Any) -> None:
    assert with_tuples(factory, {"a": [3, 4]}) == {"a": expected}
    assert with_tuples(factory, {"a": 3}) == {"a": 3}


class Sized(gym_fakes.Recorder):
    def __init__(self, size: tuple[int, int] = (1, 1), names: Any = (), config: dict[str, Any] | None = None) -> None:
        super().__init__()
        got.append((size, names, config))


gymnasium.register("Sized-v0", entry_point=f"{__name__}:Sized")


@pytest.mark.parametrize("name", [f"{__name__}:Sized", "gym:Sized-v0"])
def test_environments_get_tuples_where_they_declare_them(name: str) -> None:
    make_env(name, 0, 0, {"size": [2, 3], "names": ["a"], "config": {"at": [1, 2]}}).close()
    assert got[-1] == ((2, 3), ("a",), {"at": [1, 2]})
