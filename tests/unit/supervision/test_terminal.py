"""Lines for whoever started the command."""

from __future__ import annotations

from dreamfleet.supervision import terminal


def test_what_would_control_the_terminal_is_replaced(capsys) -> None:
    terminal.print_line("a worker says \x1b[2J\x07\r of \u202e, é and 環\n\tindented")
    assert capsys.readouterr().err == "a worker says ?[2J?? of ?, é and 環\n\tindented\n"
