"""Environments that need no further library: for tests, and for a first look."""
