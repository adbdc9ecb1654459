"""The fleet file, which describes a fleet to roles on other machines, and the roles that join it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.errors import explain
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import BadInput
from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.core.roles import RoleKind
from dreamfleet.launch.factories import make_env, make_replay, make_stream
from dreamfleet.launch.fleet import NO_DEVICE
from dreamfleet.launch.fleet_signature import FLEET_FORMAT, read_signed, sign
from dreamfleet.launch.named_code import expect_pinned, say_imports
from dreamfleet.launch.replay_address import addresses_to_bind
from dreamfleet.roles import entry
from dreamfleet.runs.run_folder import RunFolder, is_in_use
from dreamfleet.supervision.role_spec import RestartRule, RoleSpec
from dreamfleet.transport.address import is_local, parse_address, split_addresses
from dreamfleet.transport.security import create_keys


class FleetFile:
    """`fleet.json` as read by a remote role. It is signed for the role's key in the folder `keys/` next to it."""

    def __init__(self, path: Path, key: str) -> None:
        self.data = read_signed(path, key)
        if self.data.get("config") is None:
            raise BadInput(
                f"{path} belongs to a fleet started from Python: call dreamfleet.parallel.parallel_env instead"
            )
        try:
            self.config = Config.model_validate(self.data["config"])
        except ValidationError as error:
            raise BadInput(f"{path} was written by another version: {explain(error)}") from None
        self.folder = path.absolute().parent

    def args(self, *needed: str) -> FleetArgs:
        """Return the fleet's arguments with remote addresses. Roles in `needed` must have one."""
        addresses = {f"{name}_addr": self._remote(name, name in needed) for name in self.data["addresses"]}
        own = {"logdir": str(self.folder), "public_keys": self.data["public_keys"]}
        return FleetArgs.model_validate({**self.data["args"], **addresses, **own})

    def _remote(self, name: str, needed: bool) -> str:
        found = [address for address in self.data["addresses"][name] if not is_local(address)]
        if not found and not needed:
            return ",".join(self.data["addresses"][name])
        if not found:
            raise BadInput(
                f"the fleet's {name} has no tcp address: start the fleet with run.{name}_addr=tcp://HOST:{{auto}}"
            )
        address = parse_address(found[0])
        if address.host in ("*", "0.0.0.0", "::"):  # all interfaces of its machine
            return f"tcp://{self.data['host']}:{address.port}"
        return str(address)


def make_joining_env(config: Config, mode: str, index: int, room: int = 1, restart: int = 0) -> Env | EnvBatch:
    return make_env(config, mode, abs(index), room, restart)


def joining_envs(fleet: FleetFile, envs: int, mode: str, pinned: Sequence[str] = ()) -> list[RoleSpec]:
    """Return one worker with `envs` environments, whose seeds differ from those of all other workers.

    Print what the worker will import. Raise BadInput if `pinned` is given and does not contain it.
    """
    expect_pinned(fleet.config, pinned)
    say_imports(fleet.config)
    unnumbered = [-1 - number for number in range(envs)]  # the actor assigns indices to remote environments
    args = fleet.args("actor")

    def target(how: str = "") -> partial[None]:
        config = fleet.config.model_copy(update={"seed": secrets.randbelow(2**31)})
        make = partial(make_joining_env, config, mode)
        return partial(entry.parallel_env_group, make, unnumbered, args, mode)

    rule = RestartRule(args.env_worker_restarts, "run.env_worker_restarts", args.restart_window_s, stateless=True)
    return [
        RoleSpec("env", target(), 0, env=NO_DEVICE, restart=rule, restart_target=target, kind=RoleKind.of_mode(mode))
    ]


def joining_replay(fleet: FleetFile) -> list[RoleSpec]:
    """Return the replay of a fleet with `run.remote_replay=true`, at the address that the fleet expects."""
    if not fleet.data["args"]["remote_replay"]:
        raise BadInput("this fleet already has a replay: start the fleet with run.remote_replay=true")
    bound = [address for address in fleet.data["addresses"]["replay"] if not is_local(address)]
    args = fleet.args("replay").model_copy(update={"replay_addr": addresses_to_bind(bound)})
    config, folder = fleet.config, Path(args.logdir)
    if not is_in_use(folder):  # the learner may have run here before
        Snapshots(folder).release()
    target = partial(
        entry.parallel_replay,
        partial(make_replay, config, folder, "train"),
        partial(make_replay, config, folder, "eval"),
        partial(make_stream, config),
        args,
    )
    rule = RestartRule(args.max_restarts, "run.max_restarts")
    return [RoleSpec("replay", target, 0, env=NO_DEVICE, restart=rule, kind=RoleKind.REPLAY)]


ADDRESSES = ("actor_addr", "replay_addr", "logger_addr")


def describe_fleet(args: FleetArgs, folder: RunFolder, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the signed description of a fleet for remote roles. It does not contain secret keys."""
    fleet = {
        "format": FLEET_FORMAT,
        "host": socket.gethostname(),
        "addresses": {key.removesuffix("_addr"): split_addresses(getattr(args, key)) for key in ADDRESSES},
        "public_keys": create_keys(folder.keys),
        "args": args.model_dump(exclude={"logdir"}),
        "config": config,
    }
    return sign(fleet, folder.keys)
