"""How data and parameters of the agent lie on the devices and travel to them."""
