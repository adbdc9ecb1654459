"""The configuration: its schema, how it is read from the command line and saved, and the flat view the roles get."""
