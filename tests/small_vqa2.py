"""A small set in the challenge's published format: images in a zip and a folder, some of them damaged."""

import io
import json
import zipfile

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220), "green": (30, 200, 30)}


def picture(colour: str, size=(48, 40)) -> bytes:
    """A coloured square on grey as JPEG."""
    array = np.full((size[1], size[0], 3), 128, np.uint8)
    array[8:28, 12:36] = COLOURS[colour]
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def write_vqa2(folder, train: int = 60, test: int = 24) -> None:
    """Questions about the colour of a square; image 7 is truncated, image 8 is missing, question 5's answer is rare."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, count, first in (("train", train, 0), ("val", test, 1000)):
        questions, annotations = [], []
        images: dict[int, bytes] = {}
        for n in range(count):
            image = first + n
            colour = list(COLOURS)[int(rng.integers(3))]
            images[image] = picture(colour)
            asks = n % 2 == 0
            other = list(COLOURS)[int(rng.integers(3))]
            text = "What color is the square?" if asks else f"Is the square {other}?"
            answer = colour if asks else ("yes" if colour == other else "no")
            if image == 5:
                text, answer = "What is it called?", "malevich"
            given = [answer] * 7 + ["Purple!", "The purple", answer if image == 5 else f"The {other}."]
            kind = "yes/no" if answer in ("yes", "no") else "other"
            questions.append({"image_id": image, "question": text, "question_id": 10 * image})
            each = [{"answer": a, "answer_confidence": "yes", "answer_id": i + 1} for i, a in enumerate(given)]
            note = {"question_id": 10 * image, "image_id": image, "answer_type": kind, "answers": each}
            note |= {"question_type": text.split()[0].lower(), "multiple_choice_answer": answer}
            annotations.append(note)
        for name, key, rows in (("OpenEnded_mscoco", "questions", questions), ("mscoco", "annotations", annotations)):
            (folder / f"v2_{name}_{part}2014_{key}.json").write_text(json.dumps({"info": {}, key: rows}))
        if part == "train":
            with zipfile.ZipFile(folder / "train2014.zip", "w") as archive:
                for image, raw in images.items():
                    if image != 8:
                        name = f"train2014/COCO_train2014_{image:012d}.jpg"
                        archive.writestr(name, raw[: len(raw) // 2] if image == 7 else raw)
        else:
            (folder / "val2014").mkdir()
            for image, raw in images.items():
                (folder / "val2014" / f"COCO_val2014_{image:012d}.jpg").write_bytes(raw)
