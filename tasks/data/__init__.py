"""Acquisition of data: manifests, downloads, caches, verification. Nothing here knows a model or fairseq."""

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.progress import NullProgress, Progress

__all__ = ["DataError", "DataUnavailable", "NullProgress", "Progress"]
