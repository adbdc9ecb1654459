"""The fleet file: what a role on another machine reads of a fleet, and the roles that join it."""

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
    """`fleet.json` as a role elsewhere reads it, signed for the key that this role has in `keys/` beside it."""

    def __init__(self, path: Path, key: str) -> None:
        self.data = read_signed(path, key)
        if self.data.get("config") is None:
            raise BadInput(
                f"{path} belongs to a fleet started in code: call dreamfleet.parallel.parallel_env there too"
            )
        try:
            self.config = Config.model_validate(self.data["config"])
        except ValidationError as error:
            raise BadInput(f"{path} was written by another version: {explain(error)}") from None
        self.folder = path.absolute().parent

    def args(self, *needed: str) -> FleetArgs:
        """The fleet's arguments, with addresses that another machine can reach, which those of `needed` must have."""
        addresses = {f"{name}_addr": self._remote(name, name in needed) for name in self.data["addresses"]}
        own = {"logdir": str(self.folder), "public_keys": self.data["public_keys"]}
        return FleetArgs.model_validate({**self.data["args"], **addresses, **own})

    def _remote(self, name: str, needed: bool) -> str:
        found = [address for address in self.data["addresses"][name] if not is_local(address)]
        if not found and not needed:
            return ",".join(self.data["addresses"][name])
        if not found:
            raise BadInput(
                f"the fleet's {name} listens on no tcp address: start it with run.{name}_addr=tcp://HOST:{{auto}}"
            )
        address = parse_address(found[0])
        if address.host in ("*", "0.0.0.0", "::"):  # of every network of its machine
            return f"tcp://{self.data['host']}:{address.port}"
        return str(address)


def make_joining_env(config: Config, mode: str, index: int, room: int = 1, restart: int = 0) -> Env | EnvBatch:
    return make_env(config, mode, abs(index), room, restart)


def joining_envs(fleet: FleetFile, envs: int, mode: str, pinned: Sequence[str] = ()) -> list[RoleSpec]:
    """One worker with `envs` environments, seeded apart from those of the fleet and of other joining workers.

    Says on the terminal what the worker will import. Raises BadInput if that is not `pinned`, where anything is.
    """
    expect_pinned(fleet.config, pinned)
    say_imports(fleet.config)
    unnumbered = [-1 - number for number in range(envs)]  # the actor numbers environments that join from elsewhere
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
    """The replay of a fleet started with `run.remote_replay=true`; it listens where the fleet expects it."""
    if not fleet.data["args"]["remote_replay"]:
        raise BadInput("this fleet has a replay of its own: start it with run.remote_replay=true to bring another")
    bound = [address for address in fleet.data["addresses"]["replay"] if not is_local(address)]
    args = fleet.args("replay").model_copy(update={"replay_addr": addresses_to_bind(bound)})
    config, folder = fleet.config, Path(args.logdir)
    if not is_in_use(folder):  # the learner may have run here before it moved to another machine
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
