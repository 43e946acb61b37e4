"""Answer questions about images: image file, tab, question per line; one answer per line.

    python predict.py < input

In Python: `from predict import predict; predict([("image.png", "a question")])` gives pairs of an answer and its probability.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tasks.data.images import Blank, ImageError, decode
from tasks.data.symbols import FIRST, UNK
from tasks.load.standalone.opening import answer, opened
from tasks.seq2seq.vocabulary import read_dictionary
from tasks.vqa.encode import ImageSpec, Split, words_of
from tasks.vqa.predict import predict as batches

HERE = Path(__file__).resolve().parent
meta = json.loads((HERE / "encoding/meta.json").read_text(encoding="utf-8"))
answers = json.loads((HERE / "encoding/answers.json").read_text(encoding="utf-8"))
ids = {word: i for i, word in enumerate(read_dictionary(HERE / "encoding/dict.txt"), FIRST)}
spec = ImageSpec(meta["image"]["kind"], tuple(meta["image"]["grid"]), meta["image"]["channels"])
sizes = {"word_count": FIRST + len(ids), "answer_count": len(answers), "image_spec": spec, "vectors": None}
model, about = opened(HERE, SimpleNamespace(**sizes))


def pixels(file: str) -> np.ndarray:
    """The image as the model reads it. Raises ValueError, naming the file, if it cannot be read."""
    try:
        return decode(Path(file).read_bytes(), spec.grid)
    except (OSError, ImageError) as error:
        raise ValueError(f"image {file!r} cannot be read: {error}") from error


def predict(asked: list[tuple[str, str]]) -> list[tuple[str, float]]:
    """Answers to pairs (image file, question), and their probabilities."""
    files = {image: i for i, image in enumerate(dict.fromkeys(image for image, _ in asked))}
    images = Blank(list(files))
    if asked and spec.kind == "pixels":
        images = SimpleNamespace(rows=np.stack([pixels(image) for image in files]).__getitem__)
    rows = [[ids.get(w, UNK) for w in words_of(text)] or [UNK] for _, text in asked]
    tokens = [np.array(row[: meta["options"]["max_tokens"]]) for row in rows]
    split = Split(tokens, (), (), np.array([files[image] for image, _ in asked]), HERE)
    found = batches(model, SimpleNamespace(images=images), split, about["decode"]["batch_size"])
    best = [row.sigmoid().max(0) for batch in found for row in batch.logits]
    return [(answers[int(i)], float(p)) for p, i in best]


if __name__ == "__main__":
    answer(predict, ("image", "question"))
