"""The parts of `dreamfleet replay` that need no run."""

from __future__ import annotations

from dreamfleet.commands.replay import split_words


def test_words_that_are_files_are_told_from_overrides(tmp_path):
    file = tmp_path / "a=b.npz"
    file.touch()
    assert split_words([str(file), "run.steps=5", "env.kwargs.path=c.npz"]) == (
        [str(file)],
        ["run.steps=5", "env.kwargs.path=c.npz"],
    )
