"""The run folder as a public contract: its files, what they say, and how a run is resumed."""
