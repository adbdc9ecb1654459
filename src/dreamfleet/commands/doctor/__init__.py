"""`dreamfleet doctor`: checks the machine for problems with training."""
