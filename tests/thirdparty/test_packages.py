"""Installs each package of docs/packages.md in an environment of its own and tries what the page says to type.

scripts/test -m thirdparty -n 0                 # all, which takes long
scripts/test -m thirdparty -n 0 -k minigrid     # one package
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import dreamfleet

PAGE = Path(dreamfleet.__file__).parents[2] / "docs" / "packages.md"
ROW = re.compile(r"^\| *(?P<install>.*?) *\| *(?P<words>`.*?`) *\| *(?P<outcome>.*?) *\| *(?P<note>.*?) *\|$")
REFUSED = re.compile(r'^refused: "(.+)"$')
STEPS = "100"
SMALL = (
    "agent=random",
    "run.steps=200",
    "run.envs=2",
    "run.eval_envs=0",
    "replay.size=2000",
    "batch_size=2",
    "batch_length=8",
    "report_length=8",
    "logger.sinks=[]",
)
WAIT_S = 600.0


class Try(NamedTuple):
    """One row of the page."""

    words: list[str]
    refused: str | None  # what check-env says; None where the environment trains


def packages() -> dict[str, list[Try]]:
    """Return the rows of the page by what is installed for them. An empty cell repeats the one above."""
    found: dict[str, list[Try]] = {}
    install = ""
    for line in PAGE.read_text().splitlines():
        if row := ROW.match(line):
            install = row["install"].replace("`", "") or install
            refused = REFUSED.match(row["outcome"])
            assert refused or row["outcome"] == "trains", f"{line}: the outcome is neither 'trains' nor a refusal"
            words = shlex.split(row["words"].strip("`"))
            found.setdefault(install, []).append(Try(words, refused[1] if refused else None))
    return found


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An interpreter with the package, Dreamfleet, and whatever Dreamfleet's own environment has."""
    install: str = request.param
    folder = tmp_path_factory.mktemp(re.sub(r"\W+", "-", install))
    venv.create(folder, with_pip=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "own.pth").write_text(f"{PAGE.parents[1] / 'src'}\n{sysconfig.get_paths()['purelib']}\n")
    run(folder, folder / "bin" / "python", "-m", "pip", "install", "--quiet", *install.split())
    yield folder / "bin" / "python"


def run(folder: Path, *command: str | Path, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    said = f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert code is None or done.returncode == code, said
    return done


@pytest.mark.thirdparty
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("python", "tries"), packages().items(), ids=list(packages()), indirect=["python"])
def test_a_package_does_what_the_page_says(python: Path, tries: list[Try], tmp_path: Path) -> None:
    problems = {" ".join(each.words): problem for each in tries if (problem := find_problem(python, each, tmp_path))}
    assert not problems, json.dumps(problems, indent=1)


def find_problem(python: Path, each: Try, folder: Path) -> str | None:
    """Return what differs from the page, None where nothing does."""
    name, *words = each.words
    checked = run(folder, python, "-m", "dreamfleet", "check-env", name, *words, "--steps", STEPS, "--json", code=None)
    if each.refused is not None:
        said = checked.stdout + checked.stderr
        return None if checked.returncode and each.refused in said else f"not refused as the page says: {said[-2000:]}"
    if checked.returncode:
        return f"check-env: {(checked.stdout + checked.stderr)[-2000:]}"
    run_dir = folder / re.sub(r"\W+", "-", "-".join(each.words))
    trained = run(
        folder, python, "-m", "dreamfleet", "train", f"env={name}", *words, *SMALL, "--run-dir", run_dir, code=None
    )
    if trained.returncode:
        return f"train: {(trained.stdout + trained.stderr)[-2000:]}"
    steps = json.loads((run_dir / "status.json").read_text())["pace"]["step"]
    return None if steps == 200 else f"train: ended at step {steps}"


def test_the_page_names_many_packages_and_environments() -> None:
    found = packages()
    assert len(found) >= 25
    assert sum(map(len, found.values())) >= 60
    assert all(each.words and each.words[0] for tries in found.values() for each in tries)
