"""`dreamfleet eval` and `export`: the policy of a run, played or written to a file."""
