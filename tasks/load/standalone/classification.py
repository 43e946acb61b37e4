"""Classify texts: one per line, or two with a tab between them; one class per line.

    python predict.py < input

In Python: `from predict import predict; predict(["a text"])` gives pairs of a class and its probability.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tasks.classification.encode import Encoded, tokens_of
from tasks.classification.predict import predict as batches
from tasks.data.ragged import Ragged
from tasks.data.symbols import FIRST, UNK
from tasks.load.standalone.opening import answer, opened
from tasks.seq2seq.vocabulary import read_dictionary

HERE = Path(__file__).resolve().parent
meta = json.loads((HERE / "encoding/meta.json").read_text(encoding="utf-8"))
options, words = SimpleNamespace(**meta["options"]), read_dictionary(HERE / "encoding/dict.txt")
vectors = np.load(HERE / "encoding/vectors.npy") if (HERE / "encoding/vectors.npy").exists() else None
encoded = Encoded(HERE, options, meta["classes"], words, vectors, splits={}, sha256="", report={})
model, about = opened(HERE, encoded)
ids = {word: i for i, word in enumerate(words, FIRST)}


def predict(texts: list[str] | list[tuple[str, ...]]) -> list[tuple[str, float]]:
    """Classes of texts, or of pairs of texts, and their probabilities."""
    fields = []
    for field in zip(*((text,) if isinstance(text, str) else text for text in texts)):
        rows = [[ids.get(token, UNK) for token in tokens_of(text, options)] for text in field]
        fields.append(Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)])))
    found = [("", 0.0)] * len(texts)
    for batch in batches(model, SimpleNamespace(fields=fields), about["batch_size"]) if texts else ():
        for i, (p, best) in zip(batch.index.tolist(), zip(*(x.tolist() for x in batch.log_probs.exp().max(-1)))):
            found[i] = meta["classes"][best], p
    return found


if __name__ == "__main__":
    answer(predict, meta["fields"])
