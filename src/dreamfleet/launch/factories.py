"""Turns a configuration into the factories of a fleet, and a fleet file into roles that join it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.errors import explain
from dreamfleet.config.schema import Config
from dreamfleet.core.context import current_context
from dreamfleet.core.errors import BadInput
from dreamfleet.core.factories import Factories
from dreamfleet.core.interfaces import Agent, Arrays, Env, EnvBatch, KnowsRows, Logger, Replay
from dreamfleet.core.roles import RoleKind
from dreamfleet.core.spaces import without_log
from dreamfleet.launch.agents import BUILT_IN_AGENTS, find_agent
from dreamfleet.launch.fleet_signature import read_signed
from dreamfleet.launch.launcher import NO_DEVICE
from dreamfleet.launch.named_code import expect_pinned, say_imports
from dreamfleet.launch.replay_address import addresses_to_bind
from dreamfleet.launch.replay_options import replay_options
from dreamfleet.roles import entry
from dreamfleet.runs.run_folder import is_in_use
from dreamfleet.supervision.role_spec import RestartRule, RoleSpec
from dreamfleet.transport.address import is_local, parse_address

if TYPE_CHECKING:
    from dreamfleet.envs.options import EnvOptions
    from dreamfleet.envs.registry import Made


def make_factories(config: Config, run_folder: Path) -> Factories:
    return Factories(
        make_agent=partial(make_agent, config, run_folder),
        make_replay_train=partial(make_replay, config, run_folder, "train"),
        make_replay_eval=partial(make_replay, config, run_folder, "eval"),
        make_env_train=partial(make_env, config, "train"),
        make_env_eval=partial(make_env, config, "eval"),
        make_stream=partial(make_stream, config),
        make_logger=partial(make_logger, config, run_folder),
    )


def check_names(config: Config) -> None:
    """Finds a misspelt agent or environment before any process starts."""
    from dreamfleet.envs.registry import find_env

    find_env(config.env.name)
    if config.agent.name not in BUILT_IN_AGENTS:
        find_agent(config.agent.name)


def make_env(
    config: Config,
    mode: str,
    index: int,
    room: int = 1,
    restart: int = 0,
    life: int = 0,
    notes: list[str] | None = None,
) -> Env | EnvBatch:
    from dreamfleet.envs.construction_error import construction

    with construction(f"environment {config.env.name!r}"):
        return make_unadapted(config, mode, index, room, restart, life).adapted(notes)


def make_unadapted(config: Config, mode: str, index: int, room: int = 1, restart: int = 0, life: int = 0) -> Made:
    """The environment as its author wrote it. Raises `EnvFailed` where its constructor raises an error."""
    from dreamfleet.envs import registry
    from dreamfleet.envs.construction_error import construction
    from dreamfleet.envs.render.backend import prepare_drawing

    prepare_drawing()
    env, options = config.env, env_options(config)
    with construction(f"environment {env.name!r}"):
        return registry.make_unadapted(
            env.name, index, config.seed, env.kwargs, mode, options=options, room=room, restart=restart, life=life
        )


def env_options(config: Config) -> EnvOptions:
    """Those of the keys of `env` that every environment takes."""
    from dreamfleet.envs.options import EnvOptions

    return EnvOptions(**{option.name: getattr(config.env, option.name) for option in fields(EnvOptions)})


def make_agent(config: Config, run_folder: Path | None = None) -> Agent:
    """Spaces come from an environment made for this moment only. Keys for the logger are none of the agent's."""
    env = make_env(config, "train", 0)
    obs_space = without_log(env.obs_space)
    act_space = dict(env.act_space)
    with contextlib.suppress(Exception):  # told as an event where a worker closes one, and no reason to end a run
        env.close()
    if config.agent.name == "random":
        from dreamfleet.agent.random_agent import RandomAgent

        return RandomAgent(act_space, config.seed, obs_space)
    if config.agent.name == "dreamer":
        from dreamfleet.launch.dreamer import make_dreamer

        return make_dreamer(config, obs_space, act_space, run_folder)
    from dreamfleet.agent.checks import finite

    agent: Any = find_agent(config.agent.name)(obs_space, act_space, seed=config.seed)
    if not isinstance(agent, KnowsRows):  # what comes with a step is known all the same
        with contextlib.suppress(AttributeError):  # of a class with slots: the actor then holds to the first rows
            agent.row_space = finite(obs_space)
    made: Agent = agent
    return made


def make_replay(config: Config, run_folder: Path, mode: str) -> Replay:
    from dreamfleet.replay.store import ReplayStore

    return ReplayStore(replay_options(config, run_folder, mode))


def make_stream(config: Config, replay: Replay, mode: str) -> Iterator[Arrays]:
    from dreamfleet.replay.stream import ReplayStream

    if mode == "train":
        length, consec = config.batch_length, config.consec_train
    else:
        length, consec = config.report_length, config.consec_report
    return ReplayStream(replay, mode, config.batch_size, length, consec, config.replay_context)


def make_logger(config: Config, run_folder: Path) -> Logger:
    from dreamfleet.metrics.aggregate import MetricsLogger
    from dreamfleet.metrics.sinks.catalog import make_sinks
    from dreamfleet.metrics.sinks.jsonl import JsonlSink

    warn = current_context().warn
    record = JsonlSink(run_folder / "metrics.jsonl", warn)
    isolated = make_sinks(config.logger.sinks, run_folder, config.model_dump(), config.logger.keep_videos, warn)
    return MetricsLogger([record], isolated=isolated)


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

    rule = RestartRule(args.env_worker_restarts, "run.env_worker_restarts", args.restart_window_s, patient=True)
    return [RoleSpec("env", target(), 0, env=NO_DEVICE, restart=rule, again=target, kind=RoleKind.of_mode(mode))]


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
