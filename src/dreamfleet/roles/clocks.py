"""Clocks of a learner with several replicas. Replica 0 decides for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.clock import ClockBoard, Decisions
from dreamfleet.core.context import RoleContext
from dreamfleet.roles.connect import connect, server_security
from dreamfleet.transport.clock import RemoteBoard, serve_clock
from dreamfleet.transport.server import Server


@contextmanager
def clock_board(args: FleetArgs, context: RoleContext) -> Iterator[Decisions | None]:
    """Set up `GlobalClock` on this replica. Do nothing if it is the only one."""
    if args.replicas == 1:
        yield None
    elif args.replica == 0:
        board = ClockBoard()
        server = Server(args.clock_addr, name="clock", security=server_security("clock", args))
        serve_clock(server, board)
        server.start()
        try:
            yield board
        finally:
            board.close()
            server.close()
    else:
        client = connect("clock", f"clock-{args.replica}", args, context.stop)
        try:
            yield RemoteBoard(client)
        finally:
            client.close()
