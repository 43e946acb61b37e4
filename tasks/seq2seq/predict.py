"""Outputs of a trained encoder-decoder for raw texts."""

from collections.abc import Sequence
from typing import Any

from repro.options import read
from tasks.data.records import Pair, Prediction
from tasks.data.symbols import EOS, SPECIAL, UNK
from tasks.seq2seq.options import Decode
from tasks.seq2seq.search import decode
from tasks.seq2seq.tokenize import output_text


def predict(used: Any, texts: Sequence[str], *, nbest: int = 1, digits: str | None = None) -> list[Prediction]:
    """Outputs of an encoder-decoder (a `tasks.use.model.Loaded`) for raw source texts.

    Args:
        nbest: number of outputs per text; at most `decode.beam`.
        digits: the character that replaces every digit in the training text, such as `#` in Gigaword; the numbers of
            the source are restored in the output.

    Raises:
        ValueError: `nbest` is larger than the beam.
    """
    decoding = read(Decode, used.config["decode"], "decode")
    if nbest > decoding.beam:
        told = f"set decode.beam={nbest} (it is {decoding.beam})"
        raise ValueError(f"nbest={nbest} is more than the beam holds; {told}")
    pairs = [Pair(text, ("",)) for text in texts]
    found = []
    with used.as_test_set(pairs, {"digits": digits}) as test:
        split, language = test.splits["test"], test.languages["target"]
        for i, (pair, results) in enumerate(zip(pairs, decode(used.model, test, decoding, most=nbest))):
            how, tokens = {"source": pair.source, "digits": digits}, split.source_tokens[i]
            outputs = [(output_text(h.tokens, test.options, language, **how), h.score) for h in results]
            rows = [*results[0].tokens, SPECIAL[EOS]]
            unknown = [token for token, n in zip(tokens, split.source[i]) if n == UNK and token != SPECIAL[UNK]]
            found.append(Prediction(*outputs[0], tuple(outputs), results[0].attention, tokens, rows, unknown))
    return found
