"""The jobs of the fleet, one file each: plain handlers that a test can call, and a `run` that wires them up."""
