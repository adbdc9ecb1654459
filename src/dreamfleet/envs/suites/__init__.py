"""One module per suite of environments; `envs/catalog.py` lists them."""
