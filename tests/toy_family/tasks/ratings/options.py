"""Options of ratings. Texts are encoded as for classification."""

from tasks.classification.options import Decode as Decode
from tasks.classification.options import Encode as Encode
from tasks.config.options import REQUIRED, defaults, listing, text

KIND = "texts"


@defaults("task/ratings", "task")
class Task:
    """A number for each text."""

    deviations: list = listing(REQUIRED, text(), help="what differs from the paper; printed below tables")
