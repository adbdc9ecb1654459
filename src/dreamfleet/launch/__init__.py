"""Build the roles of a fleet from a configuration. Empty because every process of a fleet imports this package."""
