"""The run folder as a public contract: the form of its files, for all that write or read them. Starts no process."""
