"""What the commands do, one module or folder each. The command line parses and prints, these work."""
