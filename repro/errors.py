"""Errors whose message is for the user, and the words they share. Needs only Python's standard library."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class Refused(Exception):
    """What is wrong, why, and what to do next.

    Args:
        what: the problem, naming the value, file or data set.
        why: where it was looked for, or what was expected and what was found.
        next_step: what to do now, as a command if there is one.
    """

    def __init__(self, what: str, why: str = "", next_step: str = "") -> None:
        super().__init__(what, why, next_step)
        self.what, self.why, self.next_step = what, why, next_step

    def __str__(self) -> str:
        further = {"looked at": self.why, "next step": self.next_step}
        return "\n".join([self.what, *(f"  {name}: {text}" for name, text in further.items() if text)])


class ConfigError(Refused, ValueError):
    """All `problems` with a configuration, experiment or claim, one sentence each, collected before any data are read."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(dict.fromkeys(problems))
        super().__init__("; ".join(self.problems))
        self.args = (self.problems,)


class StoreError(Refused, RuntimeError):
    """The store could not be written or read."""


def nearest(word: Any, known: Iterable[str]) -> str:
    """The known word that is most similar to `word`, or ends with `_word` or `.word`; empty if there is none."""
    known, word = list(known), word[:100] if isinstance(word, str) else ""
    close = difflib.get_close_matches(word, known, n=1)
    return next(iter(close or [k for k in known if word and k.endswith((f"_{word}", f".{word}"))]), "")


def near(word: Any, known: Iterable[str]) -> str:
    """The text ` (did you mean 'x'?)`, or "" if no known word is `nearest`."""
    found = nearest(word, known)
    return f" (did you mean {found!r}?)" if found else ""


def short(value: Any) -> str:
    """A value as shown in messages, cut to 200 characters."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
