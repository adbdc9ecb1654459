"""The roles of a fleet as specs, from its factories and arguments."""

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


# Only the agent may see an accelerator: a worker that imports a library with one would take memory from it.
NO_DEVICE = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


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
        rule = dataclasses.replace(alone, restart_group=servers)
        roles.append(dataclasses.replace(_role(RoleKind.AGENT, agent, args, 1, {}, rule), saves=True))
    else:  # a thread cannot be killed, and what it leaves behind would be there in its next life
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
    """A role that comes back by itself. `target` takes the arguments, which tell it in which way it does.

    Where there is only one role of a kind, it has the kind's name.
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
