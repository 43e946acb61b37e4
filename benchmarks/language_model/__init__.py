"""A causal language model over bytes: what sparse attention costs and gives over contexts of thousands of positions."""
