"""`dreamfleet bench`: runs a configuration for a minute and says what bounds its speed."""
