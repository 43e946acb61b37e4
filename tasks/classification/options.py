"""Options of the classification tasks, apart from those of data, model and mapping."""

from collections.abc import Mapping
from typing import Any

from repro.options import choice, flag, integer, listing, text
from tasks.config.files import defaults
from tasks.config.models import architecture
from tasks.config.nodes import Nothing

KIND = "texts"
CLASSES = True  # training may weight the classes, and your own data are also measured by macro-F1
SCORES = ("macro_f1", "attention", "faithfulness")
TOKENIZERS = ("whitespace", "wordpunct", "wordpunct_br")


@defaults("task/snli", "task")
class Task:
    """Labelled texts: one text per example (sentiment) or two (entailment)."""

    fields: int = integer(low=1, high=2, help="texts per example")
    scores: list = listing(
        choice(*SCORES), help="extra metrics: F1 over classes; groups of weights; effect of erasing words"
    )
    keep_attention: int = integer(low=0, help="test examples whose attention is stored")
    deviations: list = listing(text(), help="what differs from the paper; printed below tables")


@defaults("task/snli", "encode")
class Encode:
    """How texts are turned into ids."""

    tokenizer: str = choice(*TOKENIZERS, help="how a text is cut into words")
    subword: str | None = choice(
        "sentencepiece",
        "char",
        optional=True,
        help="instead of the tokenizer's words: pieces or characters of the text",
    )
    lowercase: bool = flag(help="before tokenising")
    vocab_size: int | None = integer(
        low=1, optional=True, help="most frequent training words kept, in addition to those with a pretrained vector"
    )
    min_count: int = integer(low=1, help="rarer training words are unknown, unless they have a pretrained vector")
    max_tokens: int | None = integer(
        low=1, optional=True, help="only the first tokens of each text are read, in every split"
    )
    vectors: str | None = text(
        optional=True, help="file of word vectors in GloVe's format; ppmi: computed from the training texts"
    )
    vector_dim: int = integer(low=1, help="size of ppmi vectors")


Decode = Nothing  # a classifier predicts its most probable class


def problems(config: Mapping[str, Any]) -> list[str]:
    """Check that the model reads as many texts as the task's examples have."""
    name, task = config["model"]["name"], config["task"]
    reads = architecture("classification", name).TEXTS
    told = f"model.name={name!r} reads {reads} text(s) an example; those of task={task['name']} have {task['fields']}"
    return [told] if reads != task["fields"] else []
