"""`dreamfleet envs` and `check-env`: which environments there are, and whether one works."""
