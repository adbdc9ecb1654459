"""The former place of the factories that `dreamfleet.parallel` has; scripts written for it go on working."""

from dreamfleet.launch.factories import make_agent, make_env, make_logger, make_replay, make_stream

__all__ = ["make_agent", "make_env", "make_logger", "make_replay", "make_stream"]
