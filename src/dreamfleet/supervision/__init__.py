"""Runs a list of role specs as processes: starts, watches, restarts and ends them. Knows nothing of RL."""
