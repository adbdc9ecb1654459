"""Environments: how they are found by name, checked and adapted."""
