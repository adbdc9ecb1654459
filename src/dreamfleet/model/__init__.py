"""The world model, the actor and the critic as modules and pure functions on JAX arrays."""
