"""All roles in one thread, in lock step: the run that gives the same result every time."""
