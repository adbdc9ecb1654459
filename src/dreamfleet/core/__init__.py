"""Interfaces and small tools that every other layer may use. Standard library and NumPy only."""
