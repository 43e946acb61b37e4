"""Errors of data acquisition."""

from __future__ import annotations


class DataError(RuntimeError):
    """Data that is missing, unreachable, damaged or does not fit on the disk.

    The message always has three parts, so that a reader can act on it without reading code.

    Args:
        what: what is wrong, naming the value, file or data set.
        where: where it was looked for, or what was expected and what was found.
        next_step: what to do now, as a command where there is one.
    """

    def __init__(self, what: str, where: str, next_step: str) -> None:
        super().__init__(what, where, next_step)
        self.what, self.where, self.next_step = what, where, next_step

    def __str__(self) -> str:
        return f"{self.what}\n  looked at: {self.where}\n  next step: {self.next_step}"


class DataUnavailable(DataError):
    """Data that are missing or unreachable here and now. Only this kind lets a fallback step in.

    Damaged data, a full disk and a wrong config are not of this kind: going on without them would hide a mistake.
    """
