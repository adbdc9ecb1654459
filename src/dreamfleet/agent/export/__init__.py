"""Acting without training: a saved policy as a function, and as a file that needs no Dreamfleet."""
