"""Options of visual question answering, apart from those of data, model and mapping."""

from repro.options import flag, integer, listing, text
from tasks.config.files import defaults

KIND = "questions"


@defaults("task/vqa", "task")
class Task:
    """Answering questions about images."""

    keep_attention: int = integer(low=0, help="test questions whose attention is stored")
    deviations: list = listing(text(), help="what differs from the paper; printed below tables")


@defaults("task/vqa", "encode")
class Encode:
    """How questions are turned into numbers."""

    max_tokens: int = integer(low=1, help="words kept per question")
    min_answer_count: int = integer(low=1, help="answers given less often in training are not in the vocabulary")
    answers: str | None = text(
        optional=True, help="JSON file of the answers: a list, or MCAN's answer_dict.json; null: by min_answer_count"
    )
    vectors: str | None = text(optional=True, help="file of word vectors in GloVe's format; null: random vectors")
    by_image: bool = flag(help="keep an image's questions in one batch of training, so that a CNN reads it once")


@defaults("task/vqa", "decode")
class Decode:
    """How a test set is answered."""

    batch_size: int = integer(low=1, help="questions answered at once; affects only the speed")
