"""From a configuration to the roles of a fleet. Empty on purpose: processes of a fleet import this package."""
