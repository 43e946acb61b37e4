"""Errors compared by what their message names."""

from contextlib import contextmanager

import pytest


@contextmanager
def refused(kind, says="", line=0, **named):
    """The block raises `kind`; the message has the text `says`, the line, and every value that is `named` in it."""
    with pytest.raises(kind) as caught:
        yield caught
    told = [says, *([f"line {line}"] if line else [])]
    for value in named.values():
        told += value if isinstance(value, (list, tuple)) else [value]
    assert [one for one in told if one is not None and str(one) not in str(caught.value)] == []
