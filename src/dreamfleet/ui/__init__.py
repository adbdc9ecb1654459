"""The terminal: the banner, the live view and number formatting."""
