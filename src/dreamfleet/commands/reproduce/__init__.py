"""`dreamfleet reproduce`: runs a published experiment and compares the scores."""
