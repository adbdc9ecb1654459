"""The agent role: one agent shared by an actor and a learner in separate threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import RoleContext, set_context
from dreamfleet.core.error_origin import headline
from dreamfleet.core.errors import DeadlineExceeded, Disconnected, Stopped
from dreamfleet.core.interfaces import Agent, HasDescription
from dreamfleet.roles.actor import ActorRole
from dreamfleet.roles.clocks import clock_board
from dreamfleet.roles.connect import Parts, StatusReports, connect, end_roles, server_security, until_stopped
from dreamfleet.roles.learner import LearnerRole
from dreamfleet.roles.learner_clients import GONE_AFTER_S, LearnerClients
from dreamfleet.transport.batching import BatchServer

DISMISS_TIMEOUT_S = 2.0
SWITCH_INTERVAL_S = 0.0002  # switch interval of threads; Python's default of 5 ms delays actions

Part = Callable[[Agent, threading.Barrier, FleetArgs, RoleContext], None]


def run_agent(agent: Agent, args: FleetArgs, context: RoleContext) -> None:
    """Run both parts until the role stops. If one fails, stop the other and raise its error."""
    barrier = threading.Barrier(2)
    parts = Parts(context, ("actor", "learner"))
    failures: list[BaseException] = []
    if isinstance(agent, HasDescription):
        parts.status("about", agent.describe())

    def run(part: Part, name: str) -> None:
        part_context = parts.context(name)
        set_context(part_context)
        try:
            part(agent, barrier, args, part_context)
        except Stopped:
            pass
        except BaseException as error:
            failures.append(error)
        finally:
            barrier.abort()
            context.stop.set()

    threads = [
        threading.Thread(target=run, args=(part, name), name=name)
        for part, name in ((run_actor, "actor"), (run_learner, "learner"))
    ]
    with short_turns():
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:  # also on Ctrl-C, which only reaches roles without a supervisor
            context.stop.set()
            for thread in threads:
                thread.join()
    if failures:
        raise failures[0]


@contextmanager
def short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_actor(agent: Agent, barrier: threading.Barrier, args: FleetArgs, context: RoleContext) -> None:
    """Serve environments after the learner has restored the agent, until the role stops.

    Only at the end of the run are environments notified of it. If this role ends alone, such as after an error, they
    lose the connection and join the next actor.
    """
    meet(barrier, args.start_timeout_s, "restored learner")
    # A restarted replay may lack steps even if none were in flight.
    replay = connect("replay", "actor-replay", args, context.stop, tells_losses=True)
    logger = connect("logger", "actor-logger", args, context.stop)
    failures: list[BaseException] = []

    def fail(error: BaseException) -> None:
        try:
            with until_stopped(context.stop):
                raise error
        except BaseException as failure:
            failures.append(failure)
        context.stop.set()

    def refuse(error: Exception) -> NoReturn:
        fail(error)
        raise Disconnected(f"the agent has failed and will be restarted: {headline(error)}") from error

    actor = ActorRole(agent, args, replay, logger, context, refuse)
    server = BatchServer(
        args.actor_addr,
        name="actor",
        security=server_security("actor", args),
        workers=args.actor_threads,
        max_frame_bytes=actor.admission.rows.frame_bytes(),
        on_error=fail,
    )
    actor.use_replay_epoch()
    actor.serve(server)
    actor.finish_if_reached()
    try:
        server.start()
        context.report.state("ready")
        with StatusReports(context, lambda: {**actor.status(), "server": server.stats()}):
            duration_s = args.duration if context.by_hand and args.duration else None  # else the supervisor's business
            if not context.stop.wait(duration_s):
                context.report.finish(f"run.duration={args.duration:g} reached")
            if context.by_hand:
                actor.end(args.env_step_timeout_s)
            elif context.run_ends.is_set():
                actor.end(DISMISS_TIMEOUT_S)
    finally:
        server.close()
        replay.close()
        logger.close()
    for failure in failures:
        raise failure


def run_learner(agent: Agent, barrier: threading.Barrier, args: FleetArgs, context: RoleContext) -> None:
    """Restore the agent, release the actor, and train until the role stops."""
    clients = LearnerClients(
        sampler=connect("replay", "learner-sampler", args, context.stop),
        updater=connect("replay", "learner-updater", args, context.stop),
        replay=connect("replay", "learner-replay", args, None),
        logger=connect("logger", "learner-logger", args, None),
        saving=(
            connect("replay", "snapshot-replay", args, None),
            connect("logger", "snapshot-logger", args, None),
        ),
    )
    try:
        with clock_board(args, context) as board:
            learner = LearnerRole(agent, args, clients, context, board)
            learner.restore()
            meet(barrier, args.start_timeout_s, "actor")
            context.report.state("ready")
            with StatusReports(context, learner.status):
                learner.run()
    finally:
        if context.by_hand:
            context.stop.set()  # first, because a running actor treats the end of replay as a loss
            end_roles(clients.replay, clients.logger, connect_s=GONE_AFTER_S)
        clients.close()


def meet(barrier: threading.Barrier, timeout_s: float, name: str) -> None:
    begun = time.monotonic()
    try:
        barrier.wait(timeout_s)
    except threading.BrokenBarrierError:
        if time.monotonic() - begun >= timeout_s:
            raise DeadlineExceeded(f"the {name} was not ready within {timeout_s:g} s") from None
        raise Stopped(f"stopped while waiting for the {name}") from None
