"""Starts roles as processes, watches them and ends them. Empty on purpose: every child process imports this package."""
