"""Runs the command line: `python -m dreamfleet`."""

from dreamfleet.cli import main

if __name__ == "__main__":
    main()
