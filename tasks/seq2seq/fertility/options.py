"""Options of fertility tagging, apart from those of data and model."""

from repro.options import listing, text
from tasks.config.files import defaults
from tasks.config.nodes import Nothing
from tasks.seq2seq.options import Encode as Encode

KIND = "pairs"


@defaults("task/fertility", "task")
class Task:
    """Sentence pairs: predict how many target words each source word is aligned to."""

    deviations: list = listing(text(), help="what differs from the paper; printed below tables")


Decode = Nothing  # no search: each word gets its most likely fertility
