"""The main module of a process that evaluates beside a live run, at a low priority and with pauses.

It imports nothing that takes time before it has given way.
"""

import atexit
import contextlib
import json
import os
import signal
import time
from pathlib import Path
from types import FrameType

# A process of the run that wants the same core gets 15 times as much of it. At the lowest priority, 19, it would be 70
# times, and an evaluation beside a run that leaves no core idle would take half an hour.
NICE = 12
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1"}  # of JAX on the CPU, and of libraries that environments use
# Linux first shares the processor out among sessions, and by priority only within one. This process leads one.
SESSION_PRIORITY = Path("/proc/self/autogroup")
# Priorities do not keep it from taking what a run leaves idle between two messages, and with that caches and time.
SHARE = 0.04  # of all cores that it may use, taken together
WORKED_S = 0.02  # of CPU time between two pauses


def give_way() -> None:
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with contextlib.suppress(OSError):  # not every kernel has it
        SESSION_PRIORITY.write_text(str(NICE))
    os.environ.update(ONE_THREAD)
    from dreamfleet.supervision.machine import usable_cores

    take_pauses(SHARE * usable_cores())


def take_pauses(share: float) -> None:
    """From now on this process, whatever it does, keeps one core busy for `share` of the time."""
    if share >= 1:
        return
    before = time.process_time()

    def pause(signum: int, frame: FrameType | None) -> None:
        nonlocal before
        time.sleep((time.process_time() - before) * (1 / share - 1))
        before = time.process_time()

    signal.signal(signal.SIGPROF, pause)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, WORKED_S, WORKED_S)
    atexit.register(signal.setitimer, signal.ITIMER_PROF, 0)  # without its handler, the signal ends the process


def main() -> None:
    from dreamfleet.commands.evaluate.command import EvalOptions, evaluate_here
    from dreamfleet.core.errors import DreamfleetError
    from dreamfleet.launch.env_child import asked

    with asked() as (question, _, answer):
        options = question["options"]
        video = Path(options["video"]) if options["video"] else None
        try:
            report = evaluate_here(Path(question["run"]), EvalOptions(**{**options, "video": video}), live=True)
        except DreamfleetError as error:
            report = {"error": type(error).__name__, "reason": str(error)}
        json.dump(report, answer)


if __name__ == "__main__":
    give_way()
    main()
