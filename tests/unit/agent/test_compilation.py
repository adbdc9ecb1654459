"""The folder of compiled functions saves time; a run never depends on it."""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from dreamfleet.agent.compilation import use_cache
from dreamfleet.agent.dreamer import ComputeOptions, DreamerAgent
from dreamfleet.core.context import current_context, set_context
from support.fakes import make_context
from support.tiny_dreamer import make_agent


@pytest.fixture(autouse=True)
def _cache_as_before() -> Iterator[None]:
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def below_a_file(tmp_path: Path) -> Path:
    """A home that nobody can write, whoever they are."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "home"


class Builds(Exception):
    """The agent has come as far as its weights."""


def user_without_entry(uid: int) -> Any:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


def test_a_folder_that_can_be_written_is_created_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert use_cache("~/.cache/compiled") == ""
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / ".cache" / "compiled")
    assert list((tmp_path / ".cache" / "compiled").iterdir()) == []


def test_a_home_that_cannot_be_written_costs_only_the_cache(
    below_a_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("HOME", str(below_a_file))
    warning = use_cache("~/.cache/compiled")
    assert "jax.cache=~/.cache/compiled cannot be written" in warning
    assert f"Not a directory: {below_a_file.parent}:" in warning
    assert "set jax.cache" in warning
    assert jax.config.jax_compilation_cache_dir == before


def test_a_user_without_a_home_runs_without_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", user_without_entry)
    assert "HOME is not set: set jax.cache" in use_cache("~/.cache/compiled")


def test_an_agent_without_a_cache_warns_and_goes_on(below_a_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def builds(agent: DreamerAgent, key: jax.Array) -> None:
        raise Builds

    monkeypatch.setattr(DreamerAgent, "_initial", builds)  # the rest of the start takes long
    context, report = make_context("agent")
    before = current_context()
    set_context(context)
    try:
        with pytest.raises(Builds):
            make_agent(compute=ComputeOptions("float32", rng="threefry2x32", cache=str(below_a_file)))
    finally:
        set_context(before)
    (warning,) = [detail["text"] for name, detail in report.events if name == "warning"]
    assert f"jax.cache={below_a_file} cannot be written" in warning
