"""The configuration: schema, command-line parsing, loading and saving, and the flat arguments of the roles."""
