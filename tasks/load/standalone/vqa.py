"""Answer questions about images: image file, tab, question; one answer per line. Usage: python predict.py < input

In Python: `from predict import predict; predict([("image.png", "a question")])` gives answers with probabilities."""

from types import SimpleNamespace

from tasks.data.symbols import FIRST
from tasks.load.standalone.opening import FOLDER, answer, numbered, opened, pictures, stored
from tasks.vqa.encode import ImageSpec, Split, words_of
from tasks.vqa.predict import predict as batches

meta, answers = stored("meta.json"), stored("answers.json")
ids = {word: i for i, word in enumerate(stored("dict.txt"), FIRST)}
spec = ImageSpec(meta["image"]["kind"], tuple(meta["image"]["grid"]), meta["image"]["channels"])
sizes = {"word_count": FIRST + len(ids), "answer_count": len(answers), "image_spec": spec, "vectors": None}
model, about = opened(SimpleNamespace(**sizes))


def predict(asked: list[tuple[str, str]]) -> list[tuple[str, float]]:
    """Answers to pairs (image file, question), and their probabilities."""
    images, row = pictures([image for image, _ in asked], spec.kind, spec.grid)
    words = [(words_of(text) or [""])[: meta["options"]["max_tokens"]] for _, text in asked]
    split, given = Split(numbered(words, ids), (), (), row, FOLDER), SimpleNamespace(images=images)
    found = batches(model, given, split, about["decode"]["batch_size"])
    return [(answers[int(i)], float(p)) for batch in found for p, i in zip(*batch.logits.sigmoid().max(-1))]


if __name__ == "__main__":
    answer(predict, ("image", "question"))
