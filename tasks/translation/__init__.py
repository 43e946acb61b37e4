"""Translation: IWSLT, baseline-1M, Multi30k, LibreOffice help."""

from tasks.seq2seq.run import PRELOAD, prepare, run

__all__ = ["PRELOAD", "prepare", "run"]
