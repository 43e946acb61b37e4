"""Encoder-decoders, one file each; a model is found by the name of its file."""
