"""`dreamfleet doctor`: looks at the machine and says what training would run into."""
