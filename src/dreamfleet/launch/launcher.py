"""Builds the list of roles that make up a fleet and has the supervisor run it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import save_config
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import AddressError, DreamfleetError, RunFolderError
from dreamfleet.core.events import Event
from dreamfleet.core.factories import Factories
from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.core.roles import RoleKind
from dreamfleet.launch.agents import expect_suitable
from dreamfleet.launch.fleet_signature import FLEET_FORMAT, sign
from dreamfleet.launch.preflight import check_replay_fits
from dreamfleet.launch.replay_address import remote_only, unheard_replay
from dreamfleet.launch.run_description import about_run
from dreamfleet.launch.single import single_roles
from dreamfleet.launch.worker_size import envs_per_worker
from dreamfleet.roles import entry
from dreamfleet.runs.finished import finished
from dreamfleet.runs.resume import CONFIG_FILE, check_continues
from dreamfleet.runs.run_folder import RunFolder, is_in_use
from dreamfleet.supervision import terminal
from dreamfleet.supervision.event_log import OnStatus
from dreamfleet.supervision.exit_codes import EXIT_DONE
from dreamfleet.supervision.role_spec import RestartRule, RoleSpec
from dreamfleet.supervision.supervisor import Supervisor
from dreamfleet.transport.address import is_local, make_probe, parse_address, resolve_all, split_addresses
from dreamfleet.transport.security import create_keys

MakeEnv = Callable[..., Env | EnvBatch]

ADDRESSES = ("actor_addr", "replay_addr", "logger_addr")
# Only the agent may see an accelerator: a worker that imports a library with one would take memory from it.
NO_DEVICE = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


def run_fleet(
    factories: Factories, args: FleetArgs, on_status: OnStatus | None = None, config: Config | None = None
) -> int:
    """Runs a whole fleet to its end and returns the exit code.

    `config` goes into `config.yaml`, from which the run can be continued, and into `fleet.json`, so that roles on other
    machines can build their environment or replay from it. Neither is written before everything has been checked. A
    run that has reached its budget or goal is left as it is.
    """
    if not args.logdir:
        raise RunFolderError("a fleet needs a run folder: set args.logdir")
    run = Path(args.logdir)
    if (reached := finished(run, args)) and not is_in_use(run):
        if config:
            check_continues(run, config)
        terminal.say(f"dreamfleet: the run in {run} is finished: {reached}")
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
            terminal.say(f"dreamfleet: {unheard}")
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
        # Without defaults, one of which is infinite: strict JSON has no word for it.
        changed = config.model_dump(exclude_defaults=True) if config else None
        folder.write_fleet(describe_fleet(args, folder, changed))
        Snapshots(folder.path).claim()
        code = supervisor.run()
        if args.remote_replay:
            _end_replay(args)
        return code


def run_remote(specs: list[RoleSpec], args: FleetArgs) -> int:
    """Runs some roles of a fleet whose launcher is elsewhere. Their logs and status lie in a folder of their own."""
    own = Path(args.logdir) / "remote" / f"{socket.gethostname()}-{os.getpid()}"
    with RunFolder(own) as folder:
        # Longer than run.start_timeout_s: an env worker is ready once it has joined, and the fleet may come later.
        return Supervisor(specs, folder, start_timeout_s=args.wait_timeout_s, stop_timeout_s=args.stop_timeout_s).run()


def run_envs(make_env_train: MakeEnv, make_env_eval: MakeEnv, args: FleetArgs) -> int:
    """Runs only the env workers of a fleet."""
    return run_remote(env_roles(make_env_train, make_env_eval, args), args)


def fleet_roles(factories: Factories, args: FleetArgs) -> list[RoleSpec]:
    """Data flows from the environments to the logger, and roles stop in that order: each before those that it calls.
    Steps that the train ratio still holds back on their way to replay are dropped.
    """
    make = factories
    alone = RestartRule(args.max_restarts, "run.max_restarts")
    servers = ("logger",) if args.remote_replay else ("logger", "replay")
    roles = [_role(RoleKind.LOGGER, partial(entry.parallel_logger, make.make_logger), args, 3, NO_DEVICE, alone)]
    if not args.remote_replay:
        target = partial(entry.parallel_replay, make.make_replay_train, make.make_replay_eval, make.make_stream)
        roles.append(_role(RoleKind.REPLAY, target, args, 2, NO_DEVICE, alone))
    agent = partial(entry.parallel_agent, make.make_agent)
    if args.agent_process:
        rule = dataclasses.replace(alone, together=servers)
        roles.append(dataclasses.replace(_role(RoleKind.AGENT, agent, args, 1, {}, rule), saves=True))
    else:  # a thread cannot be killed, and what it leaves behind would be there in its next life
        roles.append(RoleSpec("agent", partial(agent, args), 1, thread=True, saves=True, kind=RoleKind.AGENT))
    if not args.remote_envs:
        roles += env_roles(make.make_env_train, make.make_env_eval, args)
    return roles


def with_variables(roles: Sequence[RoleSpec], variables: Mapping[str, str]) -> list[RoleSpec]:
    """The roles with further variables of the environment, where they do not set them themselves."""
    return [dataclasses.replace(role, env={**variables, **role.env}) for role in roles]


def _role(
    kind: RoleKind,
    target: Callable[..., object],
    args: FleetArgs,
    rank: int,
    env: Mapping[str, str],
    rule: RestartRule,
    name: str = "",
) -> RoleSpec:
    """A role that comes back by itself. `target` takes the arguments, which tell it in which way it does.

    Where there is only one role of a kind, it has the kind's name.
    """
    lives = count(args.life + 1)

    def again(how: str) -> Callable[[], object]:
        return partial(target, args.model_copy(update={"restarted": how, "life": next(lives)}))

    return RoleSpec(name or kind.value, partial(target, args), rank, env=env, restart=rule, again=again, kind=kind)


def env_roles(make_env_train: MakeEnv, make_env_eval: MakeEnv, args: FleetArgs) -> list[RoleSpec]:
    size = envs_per_worker(args)
    rule = RestartRule(args.env_worker_restarts, "run.env_worker_restarts", args.restart_window_s, patient=True)
    roles = []
    for mode, envs, make_env in (("train", args.envs, make_env_train), ("eval", args.eval_envs, make_env_eval)):
        kind, name = RoleKind.of_mode(mode), "env" if mode == "train" else "eval"
        for number, start in enumerate(range(0, envs, size)):
            indices = list(range(start, min(start + size, envs)))
            target = partial(entry.parallel_env_group, make_env, indices, mode=mode)
            roles.append(_role(kind, target, args, 0, NO_DEVICE, rule, f"{name}-{number}"))
    return roles


def describe_fleet(args: FleetArgs, folder: RunFolder, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a role elsewhere needs to know, signed. The secret key that it needs to be let in is not in here."""
    fleet = {
        "format": FLEET_FORMAT,
        "host": socket.gethostname(),
        "addresses": {key.removesuffix("_addr"): split_addresses(getattr(args, key)) for key in ADDRESSES},
        "public_keys": create_keys(folder.keys),
        "args": args.model_dump(exclude={"logdir"}),
        "config": config,
    }
    return sign(fleet, folder.keys)


def _resolve(args: FleetArgs, folder: RunFolder, ports: ExitStack) -> dict[str, str]:
    names = {key.removesuffix("_addr"): getattr(args, key) for key in ADDRESSES}
    if args.remote_replay:
        names["replay"] = remote_only(names["replay"])
    resolved = {f"{name}_addr": address for name, address in resolve_all(names, folder.sockets, ports).items()}
    for key, addresses in resolved.items():
        for address in split_addresses(addresses):
            # A remote replay listens by itself, perhaps on another machine, and perhaps it does so already.
            if not is_local(address) and not (args.remote_replay and key == "replay_addr"):
                _check_free(address, key)
    return resolved


def _end_replay(args: FleetArgs) -> None:
    """Ask the replay on another machine to end: no supervisor of this fleet stops it."""
    from dreamfleet.roles.connect import connect, end_roles

    with connect("replay", "launcher-replay", args, None) as replay:
        end_roles(replay)


def _end_waiting_replay(run: Path, args: FleetArgs) -> None:
    """Of a run that is finished: somebody may have started the role for it all the same, where its fleet file says."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, DreamfleetError):
        listening = json.loads((run / "fleet.json").read_text())["addresses"]["replay"]
        if remote := [address for address in listening if not is_local(address)]:
            _end_replay(args.model_copy(update={"replay_addr": ",".join(remote), "logdir": str(run)}))


def _check_free(address: str, key: str) -> None:
    """Finds an address in use before anything starts. A race is caught by the role that binds it."""
    parsed = parse_address(address)
    host = "" if parsed.host == "*" else parsed.host
    try:
        with make_probe(parsed.is_ipv6, shared=True) as probe:
            probe.bind((host, parsed.port))
    except OSError as error:
        raise AddressError(
            f"run.{key}: cannot listen on {address}: {error.strerror}: choose another port, or {{auto}}"
        ) from error
