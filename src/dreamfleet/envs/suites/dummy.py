"""The built-in test environments as a suite."""

from __future__ import annotations

from dreamfleet.envs.builtin.dummy import TASKS, Dummy, SpaceKinds
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions


def make(
    task: str, options: EnvOptions, seed: int, length: int | None = None, size: int | None = None
) -> Dummy | SpaceKinds:
    """`length` is 100 for the default task and 20 for the others; `size` of the image is the default task's only."""
    if task == "default":
        return Dummy(seed, 100 if length is None else length, 64 if size is None else size)
    if task not in TASKS:
        raise unknown_task("dummy", task, tasks())
    return SpaceKinds(TASKS[task], seed, 20 if length is None else length)


def tasks() -> list[str]:
    return ["default", *TASKS]
