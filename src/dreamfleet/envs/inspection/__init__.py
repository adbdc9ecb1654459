"""What `dreamfleet check-env` looks at: an environment as its author wrote it, step by step."""
