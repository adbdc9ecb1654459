"""How environments draw without a screen."""
