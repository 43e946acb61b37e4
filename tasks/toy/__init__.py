"""Generated sentence pairs with a planted alignment: quick, offline, with a known answer."""

from tasks import lazy

__getattr__ = lazy("tasks.seq2seq.run")
