"""Run a list of role specs as processes: start, monitor, restart and stop them. Independent of RL."""
