"""Sentence summarization: Gigaword, DUC, Debian package descriptions, Reuters."""

from tasks.seq2seq.run import PRELOAD, prepare, run

__all__ = ["PRELOAD", "prepare", "run"]
