"""Translate or summarise: one source text per line, one output per line.

    python predict.py < input

In Python: `from predict import predict; predict(["a text"])` gives pairs of a text and its score.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from tasks.data.symbols import SPECIAL, UNK
from tasks.load.standalone.opening import answer, opened
from tasks.seq2seq.decode import decode
from tasks.seq2seq.encode import Encoded
from tasks.seq2seq.tokenize import output_text
from tasks.seq2seq.vocabulary import SIDES, read_dictionary

HERE = Path(__file__).resolve().parent
encoding = json.loads((HERE / "encoding/encoding.json").read_text(encoding="utf-8"))
options, languages = SimpleNamespace(**encoding["options"]), encoding["languages"]
words = [read_dictionary(HERE / f"encoding/dict.{side}.txt") for side in SIDES]
encoded = Encoded(HERE / "encoding", options, languages, *words, splits={}, sha256="", digits=None, report={})
model, about = opened(HERE, *encoded.sizes)


def predict(texts: list[str]) -> list[tuple[str, float]]:
    """Outputs and their scores (see `decode` in model.json) for raw source texts."""
    cut, ids = encoded.cut("source"), encoded.ids("source")
    tokens = [cut(text) or [SPECIAL[UNK]] for text in texts]
    rows = [[ids.get(token, UNK) for token in row] for row in tokens]
    encoded.splits["test"] = SimpleNamespace(source=rows, source_tokens=tokens.__getitem__)
    found = decode(model, encoded, SimpleNamespace(**about["decode"]))
    return [(output_text(best.tokens, options, languages["target"]), best.score) for (best,) in found]


if __name__ == "__main__":
    answer(predict)
