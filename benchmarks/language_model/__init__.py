"""A causal language model over bytes: costs and benefits of sparse attention over thousands of positions."""
