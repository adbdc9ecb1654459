"""Trains DreamerV3 with a fleet of processes. Importing the package alone loads nothing else."""

__version__ = "0.1.0"
