"""Runs the command line: `python -m dreamfleet`."""

import sys

from dreamfleet.cli import main

if __name__ == "__main__":
    sys.exit(main())
