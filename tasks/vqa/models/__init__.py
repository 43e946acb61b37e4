"""Architectures that answer questions about images, found by file name (`tasks.config.models`)."""
