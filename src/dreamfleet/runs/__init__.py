"""The run folder as a public contract: its files, their contents, and how a run is resumed."""
