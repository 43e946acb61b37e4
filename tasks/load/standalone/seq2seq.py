"""Translate or summarise: one source text per line, one output per line. Usage: python predict.py < input

In Python: `from predict import predict; predict(["a text"])` gives pairs of a text and its score."""

from types import SimpleNamespace

from tasks.data.symbols import SPECIAL, UNK
from tasks.load.standalone.opening import FOLDER, answer, numbered, opened, stored
from tasks.seq2seq.decode import decode
from tasks.seq2seq.encode import Encoded
from tasks.seq2seq.tokenize import output_text

meta, words = stored("encoding.json"), [stored(f"dict.{side}.txt") for side in ("source", "target")]
options, languages = SimpleNamespace(**meta["options"]), meta["languages"]
encoded = Encoded(FOLDER / "encoding", options, languages, *words, splits={}, sha256="", digits=None, report={})
model, about = opened(*encoded.sizes)
cut, ids = encoded.cut("source"), encoded.ids("source")


def predict(texts: list[str]) -> list[tuple[str, float]]:
    """Outputs and their scores (see `decode` in model.json) for raw source texts."""
    tokens = [cut(text) or [SPECIAL[UNK]] for text in texts]
    encoded.splits["test"] = SimpleNamespace(source=numbered(tokens, ids), source_tokens=tokens.__getitem__)
    found = decode(model, encoded, SimpleNamespace(**about["decode"]))
    return [(output_text(best.tokens, options, languages["target"]), best.score) for (best,) in found]


if __name__ == "__main__":
    answer(predict)
