"""What a fleet file may have a worker import, and what the worker's user reads about it."""

from __future__ import annotations

import sys

import pytest

from dreamfleet.config.load import parse_overrides
from dreamfleet.core.errors import BadInput
from dreamfleet.launch.named_code import expect_pinned, named_code, say_imports

OWN = "own_package.games:make"


def test_the_environment_and_its_wrappers_are_named() -> None:
    config = parse_overrides([f"env={OWN}", "env.wrappers=[tidy:Clip, {'loud:Scale': {factor: 2}}]"])
    assert named_code(config) == [OWN, "tidy:Clip", "loud:Scale"]


def test_a_pin_that_names_all_of_it_passes() -> None:
    expect_pinned(parse_overrides([f"env={OWN}"]), [OWN])
    expect_pinned(parse_overrides([f"env={OWN}", "env.wrappers=[tidy:Clip]"]), ["tidy:Clip", OWN])
    expect_pinned(parse_overrides([f"env={OWN}"]), [])


def test_another_environment_than_the_pinned_one_is_an_error_that_names_both() -> None:
    with pytest.raises(BadInput, match=r"names 'own_package.games:make', but --env allows only 'mine:make': add --env"):
        expect_pinned(parse_overrides([f"env={OWN}"]), ["mine:make"])


def test_a_wrapper_that_is_not_pinned_is_an_error() -> None:
    with pytest.raises(BadInput, match=r"names 'tidy:Clip', but --env allows only 'own_package.games:make'"):
        expect_pinned(parse_overrides([f"env={OWN}", "env.wrappers=[tidy:Clip]"]), [OWN])


def said(capsys: pytest.CaptureFixture[str], *overrides: str) -> list[str]:
    say_imports(parse_overrides(list(overrides)))
    return capsys.readouterr().err.splitlines()


def test_the_terminal_shows_what_will_be_imported_and_nothing_is(tmp_path, monkeypatch, capsys) -> None:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    (line,) = said(capsys, f"env={OWN}")
    assert line == (
        f"dreamfleet: the fleet file names {OWN}: module own_package.games will be imported "
        f"from {package / '__init__.py'}"
    )
    assert "own_package" not in sys.modules


def test_a_module_that_is_not_there_and_suites_are_said_too(capsys) -> None:
    lines = said(capsys, "env=gym:no_such_module:Some-v0", "env.wrappers=[json:loads]")
    assert lines[0].endswith("names gym:no_such_module:Some-v0: module no_such_module is not on this machine")
    assert "names json:loads: module json will be imported from /" in lines[1]
    assert said(capsys, "env=dummy") == ["dreamfleet: the fleet file names dummy: provided by suite dummy"]
