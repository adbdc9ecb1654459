"""Text and number formatting for people."""
