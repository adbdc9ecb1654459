"""The terminal: the banner, the live view, and numbers as people read them."""
