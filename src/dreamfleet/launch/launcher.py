"""Build the roles of a fleet and run them with the supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import save_config
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import AddressError, DreamfleetError, RunFolderError
from dreamfleet.core.events import Event
from dreamfleet.core.factories import Factories
from dreamfleet.launch.agents import expect_suitable
from dreamfleet.launch.fleet import MakeEnv, env_roles, fleet_roles
from dreamfleet.launch.fleet_file import ADDRESSES, describe_fleet
from dreamfleet.launch.preflight import check_replay_fits
from dreamfleet.launch.replay_address import remote_only, unheard_replay
from dreamfleet.launch.run_description import about_run
from dreamfleet.launch.single import single_roles
from dreamfleet.runs.finished import finished
from dreamfleet.runs.resume import CONFIG_FILE, check_continues
from dreamfleet.runs.run_folder import RunFolder, is_in_use
from dreamfleet.supervision import terminal
from dreamfleet.supervision.event_log import OnStatus
from dreamfleet.supervision.exit_codes import EXIT_DONE
from dreamfleet.supervision.role_spec import RoleSpec
from dreamfleet.supervision.supervisor import Supervisor
from dreamfleet.transport.address import is_local, make_probe, parse_address, resolve_all, split_addresses
from dreamfleet.transport.security import create_keys


def run_fleet(
    factories: Factories, args: FleetArgs, on_status: OnStatus | None = None, config: Config | None = None
) -> int:
    """Run a whole fleet until it ends and return the exit code.

    After all checks have passed, `config` is saved to `config.yaml` for resuming, and to `fleet.json` for the
    environments and replay on other machines. A run that has reached its budget or goal is not changed.
    """
    if not args.logdir:
        raise RunFolderError("a fleet needs a run folder: set args.logdir")
    run = Path(args.logdir)
    if (reached := finished(run, args)) and not is_in_use(run):
        if config:
            check_continues(run, config)
        terminal.print_line(f"dreamfleet: the run in {run} is finished: {reached}")
        if args.remote_replay:
            _end_waiting_replay(run, args)
        return EXIT_DONE
    with RunFolder(args.logdir) as folder, ExitStack() as ports:
        if config:
            check_continues(folder.path, config)
        create_keys(folder.keys)
        args = args.model_copy(update={**_resolve(args, folder, ports), "logdir": str(folder.path)})
        args = args.model_copy(update={"life": Snapshots(folder.path).manifest().get("step", 0)})
        spaces = check_replay_fits(config, folder.path, aloud=on_status is None) if config else None
        if config and spaces:
            expect_suitable(config, spaces.obs, spaces.act)
        if args.remote_replay and (unheard := unheard_replay(args.replay_addr, args.logger_addr)):
            folder.write_event("replay", Event.WARNING, {"text": unheard})
            terminal.print_line(f"dreamfleet: {unheard}")
        for note in spaces.notes if spaces else ():
            folder.write_event("env", Event.NOTE, {"text": note})
        roles = single_roles(factories, args) if args.script == "single" else fleet_roles(factories, args)
        supervisor = Supervisor(
            with_variables(roles, spaces.variables if spaces else {}),
            folder,
            duration_s=args.duration,
            start_timeout_s=args.start_timeout_s,
            stop_timeout_s=args.stop_timeout_s,
            save_timeout_s=args.save_timeout_s,
            stall_timeout_s=args.stall_timeout_s,
            stall_restart=args.stall_restart,
            min_disk_gb=args.min_disk_gb,
            on_status=on_status,
            about=about_run(args, folder.path, config, spaces),
        )
        if config:
            save_config(config, folder.path / CONFIG_FILE)
        # Exclude defaults, because one is infinite, which strict JSON cannot represent.
        changed = config.model_dump(exclude_defaults=True) if config else None
        folder.write_fleet(describe_fleet(args, folder, changed))
        Snapshots(folder.path).claim()
        code = supervisor.run()
        if args.remote_replay:
            _end_replay(args)
        return code


def run_remote(specs: list[RoleSpec], args: FleetArgs) -> int:
    """Run roles of a fleet whose launcher is on another machine, with a separate folder for logs and status."""
    own = Path(args.logdir) / "remote" / f"{socket.gethostname()}-{os.getpid()}"
    with RunFolder(own) as folder:
        # Longer than run.start_timeout_s, because an env worker waits until the fleet has started.
        return Supervisor(specs, folder, start_timeout_s=args.wait_timeout_s, stop_timeout_s=args.stop_timeout_s).run()


def run_envs(make_env_train: MakeEnv, make_env_eval: MakeEnv, args: FleetArgs) -> int:
    """Run only the env workers of a fleet."""
    return run_remote(env_roles(make_env_train, make_env_eval, args), args)


def with_variables(roles: Sequence[RoleSpec], variables: Mapping[str, str]) -> list[RoleSpec]:
    """Return the roles with additional environment variables. Their own variables take precedence."""
    return [dataclasses.replace(role, env={**variables, **role.env}) for role in roles]


def _resolve(args: FleetArgs, folder: RunFolder, ports: ExitStack) -> dict[str, str]:
    names = {key.removesuffix("_addr"): getattr(args, key) for key in ADDRESSES}
    if args.remote_replay:
        names["replay"] = remote_only(names["replay"])
    resolved = {f"{name}_addr": address for name, address in resolve_all(names, folder.sockets, ports).items()}
    for key, addresses in resolved.items():
        for address in split_addresses(addresses):
            # A remote replay binds its own address and may already be running.
            if not is_local(address) and not (args.remote_replay and key == "replay_addr"):
                _check_free(address, key)
    return resolved


def _end_replay(args: FleetArgs) -> None:
    """Stop the remote replay, which has no supervisor in this fleet."""
    from dreamfleet.roles.connect import connect, end_roles

    with connect("replay", "launcher-replay", args, None) as replay:
        end_roles(replay)


def _end_waiting_replay(run: Path, args: FleetArgs) -> None:
    """Stop a remote replay that was started for a finished run, at the address in the fleet file."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, DreamfleetError):
        listening = json.loads((run / "fleet.json").read_text())["addresses"]["replay"]
        if remote := [address for address in listening if not is_local(address)]:
            _end_replay(args.model_copy(update={"replay_addr": ",".join(remote), "logdir": str(run)}))


def _check_free(address: str, key: str) -> None:
    """Check that an address is free before anything starts. The role that binds it finds later conflicts."""
    parsed = parse_address(address)
    host = "" if parsed.host == "*" else parsed.host
    try:
        with make_probe(parsed.is_ipv6, shared=True) as probe:
            probe.bind((host, parsed.port))
    except OSError as error:
        raise AddressError(
            f"run.{key}: cannot listen on {address}: {error.strerror}: choose another port, or {{auto}}"
        ) from error
