"""Agents that the fleet can train."""
