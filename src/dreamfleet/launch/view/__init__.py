"""What a person sees of a run: the banner, the live view, the status of a run folder and its learning curves."""
