"""Errors of data acquisition."""

from repro.errors import Refused


class DataError(Refused, RuntimeError):
    """Data that are missing, unreachable, damaged or too large for the disk."""


class DataUnavailable(DataError):
    """Data that are currently missing or unreachable. This is the only error that triggers a fallback.

    Damaged data, a full disk or an invalid config raise other errors, because continuing would hide a mistake.
    """
