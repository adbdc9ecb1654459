"""GPU kernels of the recurrent model and of the norm after convolutions."""
