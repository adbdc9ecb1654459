"""`dreamfleet plot`: learning curves of runs."""
