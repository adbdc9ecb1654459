"""The roles of the fleet, one file each. Handlers are plain methods that tests can call, and `run` serves them."""
