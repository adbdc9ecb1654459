"""Tries an environment out in a process of its own, whose main module this is, and follows it from outside.

An environment that hangs, crashes or ends its process is one more finding; what was found before is kept.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import Any, TextIO

from dreamfleet.commands.envs.heartbeat import Beat, Heartbeat
from dreamfleet.config.schema import Config
from dreamfleet.core.encoding.strict_json import encode
from dreamfleet.core.error_origin import is_own_code
from dreamfleet.core.errors import BadInput, ConfigError
from dreamfleet.envs.render.backend import is_about_drawing
from dreamfleet.launch.env_child import asked, env_child, last_line, question

Report = dict[str, Any]

ROOM = 4  # environments that a vectorised one may hold here
SECONDS, SECONDS_OF_STEPS = 20.0, 600.0  # the second where the user says how many steps to take
TRACE_S = 1.0  # within which a process that hangs says where
_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')


def inspect_env(config: Config, steps: int | None = None) -> Report:
    """Raises `ConfigError` where the environment cannot be made because of what the user typed."""
    with contextlib.ExitStack() as stack:
        heartbeat = Heartbeat()
        stack.callback(heartbeat.close)
        trace, trace_end = os.pipe()
        stack.callback(os.close, trace)
        stack.callback(os.close, trace_end)
        said = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
        child = stack.enter_context(
            env_child("dreamfleet.commands.envs.trial", [heartbeat.fd, trace_end], stderr=said.fileno())
        )
        with contextlib.suppress(BrokenPipeError):  # it is gone already, which is seen below
            assert child.stdin
            child.stdin.write(question(config, steps=steps))
            child.stdin.close()
        report, hangs = _follow(child, heartbeat, config)
        beat = heartbeat.read()
        if hangs:
            _add_hang(report, beat, _where_it_hangs(child.pid, trace))
        elif child.wait() or "complete" not in report:
            said.seek(0)
            _add_death(report, beat, child.returncode, said.read())
    if "bad_input" in report:
        raise ConfigError(report["bad_input"])
    report.pop("complete", None)
    return {"env": config.env.name, **report}


def _follow(child: subprocess.Popen[str], heartbeat: Heartbeat, config: Config) -> tuple[Report, bool]:
    """Reads reports, of which the last one counts, until the child ends or has been at one thing for too long."""
    assert child.stdout
    fd = child.stdout.fileno()
    buffer = b""
    report: Report = {"ok": False, "violations": [], "notes": [], "steps": 0}
    while True:
        beat = heartbeat.read()
        left = beat.since + allowed_s(beat, config) - time.monotonic()
        if left <= 0:
            return report, True
        # Not longer than a step may take: the next one may have begun by then, and nobody wakes this.
        if not select.select([fd], [], [], min(left, config.env.step_timeout_s))[0]:
            continue
        data = os.read(fd, 1 << 16)
        if not data:
            return report, False
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            report.update(json.loads(line))


def allowed_s(beat: Beat, config: Config) -> float:
    making = beat.work in ("start", "construction")
    return config.run.start_timeout_s if making else config.env.step_timeout_s


def _where_it_hangs(pid: int, trace: int) -> str | None:
    """The innermost line of the environment's own code. The answer comes from a signal handler below Python, so that
    one that hangs in a library gives it too.
    """
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR1)
    text = b""
    while select.select([trace], [], [], 0.2 if text else TRACE_S)[0]:
        text += os.read(trace, 1 << 16)
    frames = _FRAME.findall(text.decode(errors="replace"))
    own = [frame for frame in frames if is_own_code(frame[0])]
    frame = next(iter(own or frames), None)
    return f"{frame[0]}:{frame[1]} in {frame[2]}" if frame else None


def _add_hang(report: Report, beat: Beat, place: str | None) -> None:
    problem = f"{beat} has not returned for {time.monotonic() - beat.since:.0f} s"
    at = f"it waits at {place}" if place else "look for a wait without an end"
    key = "run.start_timeout_s" if beat.work in ("start", "construction") else "env.step_timeout_s"
    _add(report, "hang", beat, problem, f"{at}; {key} sets how long to wait")


def _add_death(report: Report, beat: Beat, code: int, said: str) -> None:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    problem = f"the environment's process ended in {beat} with {how}"
    fix = last_line(said, "look into what its libraries say")
    if report.get("drawing") and is_about_drawing(said):
        fix += f"; {report['drawing']}"
    _add(report, "death", beat, problem, fix)


def _add(report: Report, kind: str, beat: Beat, problem: str, fix: str) -> None:
    report["ok"] = False
    report["violations"].append(
        {"kind": kind, "where": beat.work, "problem": problem, "fix": fix, "first_step": beat.step, "count": 1}
    )


def main(arguments: list[str]) -> None:
    heartbeat, trace = Heartbeat(int(arguments[0])), int(arguments[1])
    faulthandler.register(signal.SIGUSR1, file=trace, all_threads=False)
    with asked() as (question, config, answer):
        from dreamfleet.envs.inspection.inspect import Inspection
        from dreamfleet.envs.render.backend import drawing
        from dreamfleet.launch.agents import why_unsuitable
        from dreamfleet.launch.factories import make_unadapted

        inspection = Inspection(
            lambda restart: make_unadapted(config, "train", 0, ROOM, restart),
            lambda report: _send(answer, {**report, "drawing": drawing()}),
            heartbeat.tell,
            steps=question["steps"],
            seconds=SECONDS if question["steps"] is None else SECONDS_OF_STEPS,
            limits=partial(why_unsuitable, config),
        )
        try:
            _send(answer, {**inspection.run(), "drawing": drawing(), "complete": True})
        except BadInput as error:
            _send(answer, {"bad_input": str(error), "complete": True})


def _send(answer: TextIO, report: Report) -> None:
    answer.write(encode(report).decode())
    answer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
