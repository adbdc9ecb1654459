"""Values as bytes: JSON in messages and records, and bfloat16, which NumPy lacks."""
