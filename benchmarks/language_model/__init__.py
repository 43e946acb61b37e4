"""A causal language model over bytes, which shows the costs and benefits of sparse attention over thousands of positions."""
