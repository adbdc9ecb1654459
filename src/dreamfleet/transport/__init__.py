"""Messages between roles: dicts of arrays over ZeroMQ, with futures, batching, deadlines and keys."""

from dreamfleet.transport.address import choose_address, is_local, parse_address, resolve_auto, split_addresses
from dreamfleet.transport.batching import BatchServer
from dreamfleet.transport.client import Client
from dreamfleet.transport.clock import RemoteBoard, serve_clock
from dreamfleet.transport.codec import Outgoing, pack_json, unpack_json
from dreamfleet.transport.future import Future
from dreamfleet.transport.security import ClientSecurity, ServerSecurity, create_keys, load_client, load_server
from dreamfleet.transport.server import Server

__all__ = [
    "BatchServer",
    "Client",
    "ClientSecurity",
    "Future",
    "Outgoing",
    "RemoteBoard",
    "Server",
    "ServerSecurity",
    "choose_address",
    "create_keys",
    "is_local",
    "load_client",
    "load_server",
    "pack_json",
    "parse_address",
    "resolve_auto",
    "serve_clock",
    "split_addresses",
    "unpack_json",
]
