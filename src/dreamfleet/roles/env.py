"""The env worker role: steps several environments in one process and asks the actor for their actions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import RoleContext
from dreamfleet.core.errors import Disconnected, DreamfleetError, SpaceMismatch, Stopped, UnknownStream
from dreamfleet.core.interfaces import Arrays, Env
from dreamfleet.core.waits import Waits
from dreamfleet.envs.checks import CheckSpaces
from dreamfleet.roles.slots import own_envs
from dreamfleet.roles.wiring import StatusReports, connect
from dreamfleet.transport.client import Client, Future
from dreamfleet.transport.codec import Outgoing

NO_STREAM = -1


class EnvWorker:
    """Half of the environments step while the other half wait for their actions, or more groups if halves exceed
    `actor_batch`.

    The worker joins the actor with its environments and gets a slot and a stream for each. When the connection is lost,
    or the actor no longer knows the slots because it was restarted, the worker joins again and every environment starts
    a new episode in a new stream: a step whose fate is unknown is never sent twice.
    """

    def __init__(self, envs: Sequence[Env], indices: Sequence[int], mode: str, args: FleetArgs) -> None:
        size = min((len(envs) + 1) // 2, args.actor_rows)
        parts = [slice(start, start + size) for start in range(0, len(envs), size)]
        self.groups = [EnvGroup(envs[part], indices[part], mode) for part in parts]
        self.envs = envs
        self.mode = mode
        self.args = args
        self.steps = 0
        self.joins = 0
        self.waits = Waits()
        self._guest = any(index < 0 or index >= own_envs(args) for index in indices)

    def run(self, context: RoleContext) -> None:
        client = connect(self.args.actor_addr, context.name, self.args, context.stop, max_inflight=len(self.groups))
        try:
            with StatusReports(context, lambda: self.status(client)):
                self.serve(client, context)
        finally:
            client.close()
            for env in self.envs:
                env.close()

    def serve(self, client: Client, context: RoleContext) -> None:
        while True:
            try:
                with self.waits("actor to accept environments"):
                    self.join(client)
                context.report.state("ready")
                self.step_until_disconnected(client)
            except (Disconnected, UnknownStream) as error:
                context.report.event("disconnect", {"reason": str(error)})
            except Stopped as error:
                if self._guest and not context.stop.is_set():
                    context.report.finish(f"the actor ended: {error}")
                else:
                    with self.waits("the supervisor to stop it"):  # which knows whether the run ended well
                        context.stop.wait()
                return

    def join(self, client: Client) -> None:
        self.joins += 1
        for group in self.groups:
            reply = client.call("join", group.introduction()).result()
            group.begin(reply["slot"], reply["stream"], reply["env"])

    def step_until_disconnected(self, client: Client) -> None:
        pending: list[Future | None] = [None] * len(self.groups)
        try:
            while True:
                for number, group in enumerate(self.groups):
                    group.step(self._await_actions(pending[number]))
                    self.steps += len(group.envs)
                    pending[number] = client.send(group.outgoing)
        finally:
            give_up(pending)

    def _await_actions(self, future: Future | None) -> Arrays:
        """None for a group that has only just joined."""
        if future is None:
            return {}
        with self.waits("actions"):
            actions = dict(future.result())
        if not actions.pop("known").all():
            raise UnknownStream("the actor does not know these environments")
        return actions

    def status(self, client: Client) -> Mapping[str, Any]:
        return {
            "mode": self.mode,
            "envs": len(self.envs),
            "steps": self.steps,
            "joins": self.joins,
            "waiting": self.waits.current(),
            "client": client.stats(),
        }


def give_up(pending: Sequence[Future | None]) -> None:
    """Nobody wants these answers any more. Their errors are taken now: the next call would raise them once more."""
    for future in pending:
        with contextlib.suppress(DreamfleetError):
            if future is not None:
                future.result(timeout_s=0.0)


class EnvGroup:
    """Environments that travel in one message. Observations are written straight into that message's buffer."""

    def __init__(self, envs: Sequence[Env], indices: Sequence[int], mode: str) -> None:
        self.envs = list(envs)
        self.indices = np.asarray(indices, np.int32)
        first = self.envs[0]
        for env in self.envs[1:]:
            if dict(env.obs_space) != dict(first.obs_space) or dict(env.act_space) != dict(first.act_space):
                raise SpaceMismatch("environments of one run must have the same spaces, and two of this worker differ")
        rows = len(self.envs)
        layout: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            "slot": (np.dtype(np.int32), (rows,)),
            "stream": (np.dtype(np.int64), (rows,)),
        }
        layout.update({key: (space.dtype, (rows, *space.shape)) for key, space in first.obs_space.items()})
        self.outgoing = Outgoing("act_eval" if mode == "eval" else "act", layout)
        self._columns = [(key, self.outgoing.arrays[key]) for key in first.obs_space]
        self._is_last = self.outgoing.arrays["is_last"]
        self._idle = {
            key: np.zeros((rows, *space.shape), space.dtype) for key, space in first.act_space.items() if key != "reset"
        }
        self._reset = np.ones(rows, bool)
        self.outgoing.arrays["stream"][:] = NO_STREAM

    def introduction(self) -> Arrays:
        """What the actor needs to know; streams of an earlier connection are named so that their slots become free."""
        return {"env": self.indices, "stream": self.outgoing.arrays["stream"].copy()}

    def begin(self, slots: np.ndarray, streams: np.ndarray, indices: np.ndarray) -> None:
        self.outgoing.arrays["slot"][:] = slots
        self.outgoing.arrays["stream"][:] = streams
        self.indices = np.array(indices)
        self._reset[:] = True

    def step(self, actions: Arrays) -> None:
        """Steps every environment with its row of `actions`; without any, every environment begins an episode."""
        actions = actions or self._idle
        for row, env in enumerate(self.envs):
            action: dict[str, Any] = {key: value[row] for key, value in actions.items()}
            action["reset"] = self._reset[row]
            obs = env.step(action)
            for key, column in self._columns:
                column[row] = obs[key]
        self._reset[:] = self._is_last


def make_worker(make_env: Callable[[int], Env], indices: Sequence[int], mode: str, args: FleetArgs) -> EnvWorker:
    envs: list[Env] = []
    try:
        for index in indices:
            envs.append(make_env(index))
            envs[-1] = CheckSpaces(envs[-1], f"{mode} environment {index} ({type(envs[-1]).__name__})")
        return EnvWorker(envs, indices, mode, args)
    except BaseException:
        for env in envs:
            env.close()
        raise
