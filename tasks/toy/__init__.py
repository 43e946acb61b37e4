"""Generated sentence pairs with a planted alignment: quick, offline, with a known answer."""

from tasks.seq2seq.run import PRELOAD, prepare, run

__all__ = ["PRELOAD", "prepare", "run"]
