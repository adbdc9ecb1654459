"""Files: written whole or not at all, read within bounds, locked, and few of them open."""
