"""A package as users of Dreamfleet write one: it knows Gymnasium and nothing of Dreamfleet."""
