"""The proof's ledger: which runs are to be made, making them within a time limit, and what they add up to."""
