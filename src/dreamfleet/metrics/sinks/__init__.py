"""One file per place that metrics can be written to."""
