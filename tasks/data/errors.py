"""Errors of data acquisition."""

from typing import Any

from repro.errors import Refused


class DataError(Refused, RuntimeError):
    """Data that are missing, unreachable, damaged or too large for the disk.

    Args:
        key: the name of the file, option or data set that is wrong.
        value: what was found there.
        line: its line, from 1; 0 if unknown.
    """

    def __init__(
        self, what: str, why: str = "", next_step: str = "", key: str = "", value: Any = None, line: int = 0
    ) -> None:
        super().__init__(what, why, next_step)
        self.key, self.value, self.line = key, value, line


class DataUnavailable(DataError):
    """Data that are currently missing or unreachable. This is the only error that triggers a fallback.

    Damaged data, a full disk or an invalid config raise other errors, because continuing would hide a mistake.
    """
