"""Options of translation and summarization, apart from those of data, model and mapping."""

from collections.abc import Mapping
from typing import Any

from repro.options import choice, flag, integer, listing, number, text
from tasks.config.files import defaults

KIND = "pairs"
OUTPUTS = {"entmax15": 1.5, "sparsemax": 2.0}  # sparse output layers: alpha of entmax
SCORES = ("bleu", "chrf", "multi_bleu", "meteor", "rouge_f1", "rouge_recall75")
SELECTING = ("bleu", "chrf")  # of greedy dev outputs: allowed in `train.best_metric`, besides scores of the loss
LOOKS = ("attention", "repetition")  # not the quality of outputs, but how they attend, repeat and drop words
TOKENIZERS = ("none", "raw", "moses", "moses_lower", "ptb_lower", "ptb_gigaword")
SUBWORDS = ("none", "bpe", "sentencepiece")
_SCORES = f"of the outputs: {', '.join(SCORES)}; attention: its shape; repetition: repeated and dropped words"
_LENGTH = "score: log-probability over length ** len_penalty, as it is, or over the penalty of Wu et al. 2016"


@defaults("task/toy", "task")
class Task:
    """Sentence pairs: the model generates an output text for a source text."""

    scores: list = listing(choice(*SCORES, *LOOKS), least=1, help=_SCORES)
    keep_attention: int = integer(low=0, help="test sentences whose attention is stored")
    deviations: list = listing(text(), help="what differs from the paper; printed below tables")


@defaults("task/toy", "encode")
class Encode:
    """How texts are turned into ids."""

    tokenizer: str = choice(*TOKENIZERS, help="see tasks/seq2seq/tokenize.py")
    subword: str = choice(*SUBWORDS, help="bpe: subword-nmt; sentencepiece: its pieces")
    vocab_size: int | None = integer(
        low=1,
        optional=True,
        help="largest vocabulary of a side; with subwords: symbols to learn (null with tokenizer=raw: as many as fit the texts)",
    )
    joint: bool = flag(help="one vocabulary and one subword model for both sides")
    min_count: int = integer(low=1, help="training tokens seen less often become <unk>")
    max_source_tokens: int | None = integer(low=1, optional=True, help="longer training pairs are left out")
    max_target_tokens: int | None = integer(low=1, optional=True, help="longer training pairs are left out")
    filter_dev: bool = flag(
        help="leave out long and empty dev pairs too, as OpenNMT's preprocessing does; test pairs are always kept"
    )

    def problems(self) -> list[str]:
        if self.tokenizer == "raw" and self.subword != "sentencepiece":
            return [f"subword={self.subword} cannot be learned from raw text; set encode.subword=sentencepiece"]
        if self.subword != "none" and self.tokenizer != "raw" and self.vocab_size is None:
            return [f"vocab_size must be set: {self.subword} needs to know how many symbols to learn"]
        return []


@defaults("task/toy", "decode")
class Decode:
    """Beam search. OpenNMT 2017: length none, stop best, beam 5, 100 tokens. fairseq: length average, stop all."""

    beam: int = integer(low=1, help="hypotheses kept per step")
    max_len_a: float = number(
        low=0, high=1000, help="the longest output has max_len_a * source tokens + max_len_b tokens"
    )
    max_len_b: int = integer(low=1, help="the longest output has max_len_a * source tokens + max_len_b tokens")
    length: str = choice("average", "none", "wu", help=_LENGTH)
    len_penalty: float = number(low=-10, high=10, help="with length=average or wu: larger values favour long outputs")
    coverage_penalty: float = number(low=0, high=1e3, help="weight of Wu et al.'s coverage penalty in the score")
    stop: str = choice(
        "all", "best", help="all: when as many have ended as the beam holds; best: when the best one has ended"
    )
    replace_unk: bool = flag(help="an unknown output word becomes the source word with the largest attention")
    batch_size: int = integer(low=1, help="sentences decoded at once; affects only the speed")


def output() -> Any:
    """A model's field `output`."""
    return choice(*OUTPUTS, optional=True, help="output layer and its loss: entmax15, sparsemax; null: softmax")


def problems(config: Mapping[str, Any]) -> list[str]:
    """Conflicts between the nodes of a configuration in which each node is valid on its own."""
    if (sparse := config["model"].get("output")) and config["train"]["best_metric"] == "ppl":
        told = f"model.output={sparse} has no perplexity, as words have probability 0"
        return [f"{told}: set train.best_metric=accuracy, loss, bleu or chrf"]
    if config["model"].get("share_embeddings") and not config["encode"]["joint"]:
        return ["model.share_embeddings=true needs one vocabulary for both sides: set encode.joint=true"]
    return []
