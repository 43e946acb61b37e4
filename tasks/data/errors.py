"""Errors of data acquisition."""

from typing import Any


class DataError(RuntimeError):
    """Data that are missing, unreachable, damaged or too large for the disk.

    The message always has three parts, so that a user can act on it without reading code.

    Args:
        what: the problem, naming the value, file or data set.
        where: where the data were looked for, or what was expected and what was found.
        next_step: what to do now, as a command if there is one.
        key: the name of the file, option or data set that is wrong.
        value: what was found there.
        line: its line, from 1; 0 if unknown.
    """

    def __init__(self, what: str, where: str, next_step: str, key: str = "", value: Any = None, line: int = 0) -> None:
        super().__init__(what, where, next_step)
        self.what, self.where, self.next_step = what, where, next_step
        self.key, self.value, self.line = key, value, line

    def __str__(self) -> str:
        return f"{self.what}\n  looked at: {self.where}\n  next step: {self.next_step}"


class DataUnavailable(DataError):
    """Data that are currently missing or unreachable. This is the only error that triggers a fallback.

    Damaged data, a full disk or an invalid config raise other errors, because continuing would hide a mistake.
    """
