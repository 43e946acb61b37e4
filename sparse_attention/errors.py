"""Errors of the library that are more than one of Python's own, and the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Refused(Exception):
    """What is wrong, why, and the next step, as one message. Each kind is an error of Python, too, by which users catch it."""

    def __init__(self, what: str, why: str = "", step: str = "") -> None:
        super().__init__("; ".join(part for part in (what, why, step) if part))

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return str(self.args[0])


def meant(word: object, known: Iterable[str]) -> str:
    """A hint such as `` (did you mean 'fusedmax'?)`` for a word that is close to a known one, otherwise an empty string."""
    near = difflib.get_close_matches(str(word), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
