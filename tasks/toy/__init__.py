"""Generated sentence pairs with a planted alignment."""
