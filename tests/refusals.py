"""Errors compared by their fields instead of their sentences."""

from contextlib import contextmanager

import pytest


@contextmanager
def refused(kind, says="", **fields):
    """The block raises `kind` with these fields; the message names the error's key and its value, and `says` this."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert says in str(error)
    assert {name: getattr(error, name) for name in fields} == fields
    values = error.value if isinstance(error.value, (list, tuple)) else [error.value]
    assert [told for told in (error.key, *values) if told is not None and str(told) not in str(error)] == []
