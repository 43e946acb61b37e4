"""Torch layers that several families share: attention, LSTMs, vectors of words."""
