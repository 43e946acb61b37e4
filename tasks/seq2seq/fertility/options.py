"""Options of fertility tagging, apart from those of data and model."""

from dataclasses import dataclass

from tasks.config.options import REQUIRED, defaults, listing, text
from tasks.seq2seq.options import Encode as Encode

KIND = "pairs"


@defaults("task/fertility", "task")
class Task:
    """Sentence pairs: predict how many target words each source word is aligned to."""

    deviations: list = listing(REQUIRED, text(), help="what differs from the paper; printed below tables")


@dataclass
class Decode:
    """No search: each word gets its most likely fertility."""
