"""`dreamfleet bench`: runs a configuration for a minute and finds the bottleneck."""
