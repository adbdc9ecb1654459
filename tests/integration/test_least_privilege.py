"""What somebody can do who was given the key of an env worker."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from dreamfleet import parallel
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import DeadlineExceeded, SecurityError, TransportError, UnknownMethod
from dreamfleet.roles.connect import connect
from support import by_hand, counting
from support.by_hand import Threads
from support.fleet_probe import wait_until

SERVERS = ("actor", "replay", "logger")
WITHOUT_END = 10**9  # steps


def bound_methods(args: FleetArgs) -> set[tuple[str, str]]:
    """Of all servers, as they name them to the run's own key."""
    found = set()
    for server in SERVERS:
        with connect(server, "owner", args, None) as client, pytest.raises(UnknownMethod) as error:
            client.call("no_such_method").result(20)
        found |= {(server, method) for method in re.split(", ", str(error.value).partition(" only ")[2])}
    return found


def answered_methods(args: FleetArgs, key: str, methods: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Those whose handler is reached, if only to find the arguments wrong."""
    found = set()
    for server in SERVERS:
        with connect(server, key, args, None, max_inflight=100, key=key) as client:
            calls = {name: client.call(name) for of, name in sorted(methods) if of == server}
            wait_s = 2.0  # for all of them: a server that does not admit the key answers none
            for name, call in calls.items():
                try:
                    call.result(wait_s)
                except SecurityError:
                    continue
                except DeadlineExceeded as error:
                    assert "refuses this client's keys" in str(error)
                    wait_s = 0.0
                    continue
                except TransportError:
                    pass
                found.add((server, name))
    return found


def test_a_workers_key_reaches_four_methods_of_all_that_the_servers_have(tmp_path: Path) -> None:
    public_keys = parallel.create_keys(tmp_path)
    args = by_hand.make_args(tmp_path, "tcp", steps=WITHOUT_END)
    agent, stop = counting.make_agent(), parallel.Stop()
    roles = {**by_hand.serving(args), **by_hand.halves(agent, args)}
    threads = Threads(**{name: partial(role, stop=stop) for name, role in roles.items()})

    def updates() -> int:
        return int(agent.save()["updates"])

    try:
        wait_until(lambda: updates() > 0, 30, "the first update")
        fleet = FleetArgs.coerce(args)
        bound = bound_methods(fleet)
        assert len(bound) > 20
        alone = fleet.model_copy(update={"logdir": str(tmp_path / "worker"), "public_keys": public_keys})
        (tmp_path / "worker" / "keys").mkdir(parents=True)
        shutil.copy(tmp_path / "keys" / "worker.json", tmp_path / "worker" / "keys")
        assert answered_methods(alone, "worker", bound) == {
            ("actor", "join"),
            ("actor", "act"),
            ("actor", "act_eval"),
            ("actor", "add"),
        }
        before = updates()
        wait_until(lambda: updates() > before, 30, "further updates")
    finally:
        stop.set()
        errors = threads.errors()
    assert errors == {}
