"""Sentence summarization: Gigaword, DUC, Debian package descriptions, Reuters."""

from tasks import lazy

__getattr__ = lazy("tasks.seq2seq.run")
