"""Classify texts: one per line, or two with a tab between them; one class per line. Usage: python predict.py < input

In Python: `from predict import predict; predict(["a text"])` gives pairs of a class and its probability."""

from types import SimpleNamespace

from tasks.classification.encode import Encoded, tokens_of
from tasks.classification.predict import predict as batches
from tasks.data.symbols import FIRST
from tasks.load.standalone.opening import FOLDER, answer, numbered, opened, stored

meta, words, vectors = stored("meta.json"), stored("dict.txt"), stored("vectors.npy")
options, ids = SimpleNamespace(**meta["options"]), {word: i for i, word in enumerate(words, FIRST)}
model, about = opened(Encoded(FOLDER, options, meta["classes"], words, vectors, splits={}, sha256="", report={}))


def predict(texts: list[str] | list[tuple[str, ...]]) -> list[tuple[str, float]]:
    """Classes of texts, or of pairs of texts, and their probabilities."""
    if not texts:
        return []
    columns = zip(*((text,) if isinstance(text, str) else text for text in texts))
    fields = [numbered([tokens_of(text, options) for text in column], ids) for column in columns]
    found = batches(model, SimpleNamespace(fields=fields), about["batch_size"])
    p = {i: row.exp() for batch in found for i, row in zip(batch.index.tolist(), batch.log_probs)}
    return [(meta["classes"][int(p[i].argmax())], float(p[i].max())) for i in range(len(texts))]


if __name__ == "__main__":
    answer(predict, meta["fields"])
