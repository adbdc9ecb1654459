"""The former module of the factories in `dreamfleet.parallel`, kept for existing scripts."""

from dreamfleet.launch.factories import make_agent, make_env, make_logger, make_replay, make_stream

__all__ = ["make_agent", "make_env", "make_logger", "make_replay", "make_stream"]
