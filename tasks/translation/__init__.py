"""Translation: IWSLT, baseline-1M, Multi30k, LibreOffice help."""

from tasks import lazy

__getattr__ = lazy("tasks.seq2seq.run")
