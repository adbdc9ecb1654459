"""The report pipe and the end of a target."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from dreamfleet.core.context import current_context
from dreamfleet.core.encoding.strict_json import encode
from dreamfleet.core.errors import AddressError, Disconnected, EnvFailed, RemoteError, Stopped
from dreamfleet.core.stop import Stop
from dreamfleet.envs.construction_error import construction
from dreamfleet.supervision import child
from dreamfleet.supervision.reports import PipeReporter, ReportReader, describe_error, run_target


@pytest.fixture
def ends() -> Iterator[tuple[PipeReporter, ReportReader]]:
    read_fd, write_fd = os.pipe()
    reporter, reader = PipeReporter(write_fd), ReportReader(read_fd)
    yield reporter, reader
    reporter.close()
    os.close(read_fd)


def test_reports_arrive_in_order(ends: tuple[PipeReporter, ReportReader]) -> None:
    reporter, reader = ends
    reporter.state("ready")
    reporter.status({"steps": 3})
    reporter.event("saved", {"step": 3})
    reporter.finish("enough")
    reporter.done()
    assert reader.read() == [
        {"kind": "state", "state": "ready"},
        {"kind": "status", "status": {"steps": 3}},
        {"kind": "event", "event": "saved", "detail": {"step": 3}},
        {"kind": "finish", "reason": "enough"},
        {"kind": "done"},
    ]
    assert not reader.ended


def test_what_a_ready_role_has_made_is_not_searched_for_garbage_again(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(child.gc, "collect", lambda: called.append("collect"))
    monkeypatch.setattr(child.gc, "freeze", lambda: called.append("freeze"))
    read_fd, write_fd = os.pipe()
    reporter, reader = child.SettledReporter(write_fd), ReportReader(read_fd)
    reporter.state("starting")
    assert called == []
    for _ in range(2):  # an env worker that connects again is ready once more
        reporter.state("ready")
    reporter.close()
    assert called == ["collect", "freeze"]
    assert [report["state"] for report in reader.read()] == ["starting", "ready", "ready"]
    os.close(read_fd)


def test_a_report_in_two_pieces_is_one_report() -> None:
    read_fd, write_fd = os.pipe()
    reader = ReportReader(read_fd)
    line = encode({"kind": "done"})
    os.write(write_fd, line[:5])
    assert reader.read() == []
    os.write(write_fd, line[5:] + b"no report\n[1]\n")
    assert reader.read() == [{"kind": "done"}]
    os.close(write_fd)
    assert reader.read() == []
    assert reader.ended
    os.close(read_fd)


def _fill(reporter: PipeReporter) -> None:
    for index in range(200):
        reporter.event("e", {"index": index, "filler": "x" * 1000})
        reporter.status({"index": index})


def test_a_full_pipe_drops_status_and_queues_events(ends: tuple[PipeReporter, ReportReader]) -> None:
    reporter, reader = ends
    _fill(reporter)
    received = []
    for _ in range(10):
        received += reader.read()
        reporter.event("flush", {})
    received += reader.read()
    assert [r["detail"]["index"] for r in received if r.get("event") == "e"] == list(range(200))
    assert 10 < len([r for r in received if r["kind"] == "status"]) < 100


def test_a_finish_waits_for_a_reader_that_is_late(ends: tuple[PipeReporter, ReportReader]) -> None:
    reporter, reader = ends
    _fill(reporter)
    sender = threading.Thread(target=reporter.finish, args=("end",))
    sender.start()
    sender.join(0.1)
    assert sender.is_alive()
    received = []
    deadline = time.monotonic() + 10
    while (not received or received[-1]["kind"] != "finish") and time.monotonic() < deadline:
        received += reader.read()
    sender.join(10)
    assert received[-1] == {"kind": "finish", "reason": "end"}


def test_a_report_that_waits_ends_when_the_reader_goes_away() -> None:
    read_fd, write_fd = os.pipe()
    reporter = PipeReporter(write_fd)
    _fill(reporter)
    sender = threading.Thread(target=reporter.finish, args=("end",))
    sender.start()
    os.close(read_fd)
    sender.join(10)
    assert not sender.is_alive()
    reporter.close()


def test_reports_nobody_reads_go_nowhere() -> None:
    read_fd, write_fd = os.pipe()
    reporter = PipeReporter(write_fd)
    os.close(read_fd)
    reporter.finish("end")
    reporter.close()
    reporter.close()
    reporter.status({})


def test_threads_do_not_mix_their_lines(ends: tuple[PipeReporter, ReportReader]) -> None:
    reporter, reader = ends

    def report(name: str) -> None:
        for _ in range(200):
            reporter.event(name, {"filler": name * 500})

    threads = [threading.Thread(target=report, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    received = []
    deadline = time.monotonic() + 20
    while len(received) < 800 and time.monotonic() < deadline:
        received += reader.read()
        reporter.status({})  # takes along what is queued
        received = [entry for entry in received if entry["kind"] == "event"]
    for thread in threads:
        thread.join()
    assert [sum(entry["event"] == name for entry in received) for name in "abcd"] == [200] * 4
    assert all(entry["detail"]["filler"] == entry["event"] * 500 for entry in received)


def test_any_status_becomes_strict_json() -> None:
    status = {
        "nan": float("nan"),
        "nested": [float("inf"), (1, np.float32("nan"))],
        "scalar": np.float32(1.5),
        "array": np.arange(2),
        "object": ValueError("text"),
        ("no", "key"): 1,
    }
    text = encode(status).decode()
    strict = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert strict == {"nan": None, "nested": [None, [1, None]], "scalar": 1.5, "array": [0, 1], "object": "text"}


def _run(target: object) -> tuple[int, list[dict], str]:
    read_fd, write_fd = os.pipe()
    reporter, reader, stop, log = PipeReporter(write_fd), ReportReader(read_fd), Stop(), io.StringIO()
    code: list[int] = []
    # A thread, since the target's context is set for the thread that runs it.
    thread = threading.Thread(target=lambda: code.append(run_target(lambda: target, "role", stop, reporter, log)))
    thread.start()
    thread.join()
    reports = reader.read()
    reporter.close()
    stop.close()
    os.close(read_fd)
    return code[0], reports, log.getvalue()


def test_a_target_sees_its_context() -> None:
    names: list[str] = []
    assert _run(lambda: names.append(current_context().name)) == (0, [{"kind": "done"}], "")
    assert names == ["role"]


def test_a_failed_target_is_described_without_the_frames_around_it() -> None:
    def target() -> None:
        raise KeyError("missing")

    code, (report,), log = _run(target)
    assert code == 1
    assert report["message"] == "KeyError: 'missing'"
    assert report["traceback"] == log
    assert log.count("File ") == 1
    assert not report["expected"]


@pytest.mark.parametrize(
    ("error", "kind"), [(Stopped("asked"), "done"), (SystemExit(0), "done"), (SystemExit(3), "failed")]
)
def test_how_an_exception_ends_a_target(error: BaseException, kind: str) -> None:
    def target() -> None:
        raise error

    _, (report,), _ = _run(target)
    assert report["kind"] == kind


@pytest.mark.parametrize(
    ("error", "expected", "bad_input", "symptom"),
    [
        (AddressError("in use"), True, True, False),
        (Disconnected("gone"), True, False, True),
        (ConnectionResetError("gone"), False, False, True),
        (ValueError("bug"), False, False, False),
    ],
)
def test_errors_are_sorted(error: BaseException, expected: bool, bad_input: bool, symptom: bool) -> None:
    described = describe_error(error)
    assert (described["expected"], described["bad_input"], described["symptom"]) == (expected, bad_input, symptom)


def test_an_expected_error_without_words_still_has_a_message() -> None:
    assert describe_error(AddressError())["message"].endswith("AddressError")


def raised(in_construction: bool) -> EnvFailed:
    """As a worker raises it, with the error of the environment as its cause."""
    try:
        if in_construction:
            with construction("environment 'mine'"):
                raise OSError("no licence")
        try:
            raise OSError("no licence")
        except OSError as error:
            raise EnvFailed("train environment 0 failed 4 times") from error
    except EnvFailed as failure:
        return failure


@pytest.mark.parametrize(
    ("in_construction", "message", "passing"),
    [
        (True, "environment 'mine' cannot be made: OSError: no licence, raised at ", True),
        (False, "train environment 0 failed 4 times", False),  # it was tried again often enough
    ],
)
def test_an_error_of_an_environment_is_shown_as_its_author_knows_it(
    in_construction: bool, message: str, passing: bool
) -> None:
    described = describe_error(raised(in_construction))
    assert described["message"].startswith(message)
    assert described["of_env"] and not described["expected"]
    assert described["passing"] == passing
    assert described["traceback"].endswith("OSError: no licence\n")
    assert "EnvFailed" not in described["traceback"]


def test_an_error_of_another_process_is_shown_with_the_traceback_from_there() -> None:
    error = RemoteError("KeyError: 'image'")
    error.add_note("On the server:\nTraceback: line 5 of policy")
    described = describe_error(error)
    assert described["message"] == "KeyError: 'image'"
    assert described["symptom"] and not described["expected"]
    assert "line 5 of policy" in described["traceback"]


def test_notes_are_no_part_of_the_message() -> None:
    error = ValueError("the role broke")
    error.add_note("in episode 5")
    assert describe_error(error)["message"] == "ValueError: the role broke"
