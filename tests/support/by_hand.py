"""A fleet of counting environments that no launcher starts: its roles are called one by one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from dreamfleet import parallel
from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.address import resolve_all
from support import counting
from support.cli_fleet import environment
from support.counting import BATCH, CONTEXT, LENGTH, REPORT_LENGTH

ADDRESSES = {"ipc": "ipc://{auto}", "tcp": "tcp://127.0.0.1:{auto}"}
BEGINS = "begins\n"
SERVERS = ("actor", "replay", "logger")
ENDS_WITHIN_S = 90.0


def make_args(folder: Path, kind: str = "ipc", **changes: Any) -> dict[str, Any]:
    """A fleet of `counting.run_fleet`, with addresses that are known before any role starts."""
    sockets = folder / "sockets"
    sockets.mkdir(exist_ok=True)
    found = resolve_all(dict.fromkeys(SERVERS, ADDRESSES[kind]), sockets)
    return {
        "logdir": str(folder),
        "steps": counting.STEPS,
        "envs": counting.ENVS,
        "eval_envs": 1,
        "batch_size": BATCH,
        "batch_length": LENGTH,
        "report_length": REPORT_LENGTH,
        "replay_context": CONTEXT,
        "train_ratio": 3.0,
        "log_every": -1,
        "report_every": 0.5,
        "wait_timeout_s": 60.0,
        **{f"{name}_addr": address for name, address in found.items()},
        **changes,
    }


def roles(args: dict[str, Any]) -> dict[str, Callable[..., None]]:
    """By name, each a function of nothing but the keywords of `parallel`."""
    folder = Path(args["logdir"])
    replays = [
        partial(counting.make_replay, length + CONTEXT, folder / "replay" / mode)
        for length, mode in ((LENGTH, "train"), (REPORT_LENGTH, "eval"))
    ]
    make_stream = partial(counting.make_stream, BATCH, LENGTH, REPORT_LENGTH, CONTEXT)
    envs = {
        f"env-{index}": partial(parallel.parallel_env, counting.make_env_train, index, args)
        for index in range(args["envs"])
    }
    return {
        "replay": partial(parallel.parallel_replay, *replays, make_stream, args),
        "logger": partial(parallel.parallel_logger, partial(counting.make_logger, folder), args),
        **envs,
        "eval-0": partial(parallel.parallel_env, counting.make_env_eval, 0, args, "eval"),
        "envs": partial(parallel.parallel_envs, counting.make_env_train, counting.make_env_eval, args),
        "agent": partial(parallel.parallel_agent, counting.make_agent, args),
    }


def serving(args: dict[str, Any]) -> dict[str, Callable[..., None]]:
    """The roles beside the agent, with one environment each."""
    return {name: role for name, role in roles(args).items() if name not in ("agent", "envs")}


def halves(agent: Any, args: dict[str, Any]) -> dict[str, Callable[..., None]]:
    """Actor and learner, which share an agent and a barrier."""
    barrier = threading.Barrier(2)
    return {
        "actor": partial(parallel.parallel_actor, agent, barrier, args),
        "learner": partial(parallel.parallel_learner, agent, barrier, args),
    }


class Threads:
    """Runs roles as threads of this process."""

    def __init__(self, **targets: Callable[..., None]) -> None:
        self._pool = ThreadPoolExecutor(len(targets))
        self.futures: dict[str, Future[None]] = {name: self._pool.submit(role) for name, role in targets.items()}

    def errors(self) -> dict[str, BaseException]:
        """Of those that raised one, once all have ended."""
        found = {name: future.exception(ENDS_WITHIN_S) for name, future in self.futures.items()}
        self._pool.shutdown()
        return {name: error for name, error in found.items() if error}


class Processes:
    """Runs roles as processes that know nothing of each other but the addresses in their arguments.

    The last one starts when the others have: a run that ended before an environment came would leave it waiting.
    """

    def __init__(self, args: dict[str, Any], *names: str) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        with ExitStack() as started:
            for name in names:
                if name == names[-1]:
                    for other in self._processes.values():
                        assert other.stdout is not None
                        assert other.stdout.readline() == BEGINS
                process = self._processes[name] = started.enter_context(self._start(name, args))
                started.callback(process.kill)
            self._stack = started.pop_all()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> subprocess.Popen[str]:
        return self._processes[name]

    def ends(self) -> dict[str, tuple[int, str]]:
        """The exit code of each, and what it printed."""
        found = {}
        for name, process in self._processes.items():
            _, printed = process.communicate(timeout=ENDS_WITHIN_S)
            found[name] = process.returncode, printed
        return found

    @staticmethod
    def _start(name: str, args: dict[str, Any]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "support.by_hand", name, json.dumps(args)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True)


def saved(folder: Path) -> Arrays:
    """The agent of the newest snapshot."""
    latest = Snapshots(folder).latest()
    assert latest is not None
    return load_arrays(latest / "agent.safetensors")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
    print(BEGINS, end="", flush=True)
    roles(json.loads(sys.argv[2]))[sys.argv[1]]()
