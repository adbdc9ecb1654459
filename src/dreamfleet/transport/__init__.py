"""Messages between roles: dicts of arrays over ZeroMQ, with futures, batching, deadlines and keys."""
