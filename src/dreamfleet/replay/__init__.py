"""Where experience is kept: the store, the limiter between inserts and samples, and the streams of batches."""
