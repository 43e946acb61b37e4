"""Options of ratings. Texts are encoded as for classification."""

from repro.options import listing, text
from tasks.classification.options import Decode as Decode
from tasks.classification.options import Encode as Encode
from tasks.config.files import defaults

KIND = "texts"


@defaults("task/ratings", "task")
class Task:
    """A number for each text."""

    deviations: list = listing(text(), help="what differs from the paper; printed below tables")
