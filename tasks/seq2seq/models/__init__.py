"""Encoder-decoders: a file each, found by its name."""
