"""Build the role specs of a fleet from its factories and arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.factories import Factories
from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.core.roles import RoleKind
from dreamfleet.launch.worker_size import envs_per_worker
from dreamfleet.roles import entry
from dreamfleet.supervision.role_spec import RestartRule, RoleSpec

MakeEnv = Callable[..., Env | EnvBatch]


# Only the agent sees the accelerator. Libraries in other processes could allocate its memory.
NO_DEVICE = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


def fleet_roles(factories: Factories, args: FleetArgs) -> list[RoleSpec]:
    """Return the roles of a fleet.

    Roles stop in the order of the data flow, from environments to logger: each before the roles that it calls. Steps
    that the train ratio still keeps from entering replay are dropped.
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
        rule = dataclasses.replace(alone, restart_group=servers)
        roles.append(dataclasses.replace(_role(RoleKind.AGENT, agent, args, 1, {}, rule), saves=True))
    else:  # a thread cannot be killed, and its state would remain after a restart
        roles.append(RoleSpec("agent", partial(agent, args), 1, thread=True, saves=True, kind=RoleKind.AGENT))
    if not args.remote_envs:
        roles += env_roles(make.make_env_train, make.make_env_eval, args)
    return roles


def _role(
    kind: RoleKind,
    target: Callable[..., object],
    args: FleetArgs,
    rank: int,
    env: Mapping[str, str],
    rule: RestartRule,
    name: str = "",
) -> RoleSpec:
    """Return a role that is restarted automatically. `target` receives the arguments, with how it was restarted.

    The only role of a kind has the name of the kind.
    """
    lives = count(args.life + 1)

    def restart_target(how: str) -> Callable[[], object]:
        return partial(target, args.model_copy(update={"restarted": how, "life": next(lives)}))

    return RoleSpec(
        name or kind.value, partial(target, args), rank, env=env, restart=rule, restart_target=restart_target, kind=kind
    )


def env_roles(make_env_train: MakeEnv, make_env_eval: MakeEnv, args: FleetArgs) -> list[RoleSpec]:
    size = envs_per_worker(args)
    rule = RestartRule(args.env_worker_restarts, "run.env_worker_restarts", args.restart_window_s, stateless=True)
    roles = []
    for mode, envs, make_env in (("train", args.envs, make_env_train), ("eval", args.eval_envs, make_env_eval)):
        kind, name = RoleKind.of_mode(mode), "env" if mode == "train" else "eval"
        for number, start in enumerate(range(0, envs, size)):
            indices = list(range(start, min(start + size, envs)))
            target = partial(entry.parallel_env_group, make_env, indices, mode=mode)
            roles.append(_role(kind, target, args, 0, NO_DEVICE, rule, f"{name}-{number}"))
    return roles
