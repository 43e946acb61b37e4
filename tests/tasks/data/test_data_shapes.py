"""Generated pictures of several shapes: answers, read from the pixels; what the question alone reveals; reproducibility."""

from collections import Counter

import numpy as np
import pytest

from tasks.data import NullProgress, open_data
from tasks.data.sets import shapes
from tasks.vqa.metrics import baselines

QUIET = NullProgress()


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    return open_data({"name": "shapes"}, tmp_path_factory.mktemp("cache")).read(QUIET)


def form_of(mask):
    """The form of a shape, from its pixels alone."""
    down, across = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    box = mask[down[0] : down[-1] + 1, across[0] : across[-1] + 1]
    if not box[len(box) // 2, box.shape[1] // 2]:
        return "ring"
    if box.mean() > 0.95:
        return "square"
    widths = box.sum(1)
    if len(set(widths.tolist())) == 2:
        return "cross"
    half = len(widths) // 2
    return "triangle" if widths[-half:].sum() > 1.5 * widths[:half].sum() else "circle"


def test_the_answers_are_those_that_the_pixels_show(splits, opened, tmp_path):
    asked = splits["dev"]
    images = opened("shapes").about["images"](list(dict.fromkeys(q.image for q in asked)), tmp_path, QUIET)
    assert images.grid == (shapes.SIDE, shapes.SIDE) and not images.bad
    for q in asked:
        (picture,) = images.rows(np.array([images.index[q.image]]))
        seen = {tuple(int(v) for v in rgb) for rgb in picture.reshape(-1, 3)} - {(0, 0, 0)}
        assert len(seen) == shapes.SHAPES
        form = q.text.removeprefix("what colour is the ").removesuffix("?")
        (colour,) = [rgb for rgb in seen if form_of((picture == rgb).all(-1)) == form]
        assert shapes.COLOURS[q.answer] == colour and q.answers == (q.answer,)


def test_the_question_alone_says_nothing_about_the_answer(splits):
    assert [len(splits[s]) for s in ("train", "dev", "test")] == [9000, 1500, 3000]
    answers = Counter(q.answer for q in splits["train"])
    assert set(answers) == set(shapes.COLOURS) and max(abs(n - 9000 / 8) for n in answers.values()) < 130
    assert len({q.text for q in splits["train"]}) == len(shapes.FORMS)
    chance = 100 / len(shapes.COLOURS)
    assert all(of["test/accuracy"] < chance + 3 for of in baselines(splits["train"], splits["test"]).values())


def test_pictures_depend_only_on_seed_split_and_number(splits, read):
    assert list(read("shapes", limits={"train": 7})["train"]) == splits["train"][:7]
    other = read("shapes", seed=2)["train"]
    assert [q.answer for q in other[:30]] != [q.answer for q in splits["train"][:30]]
    keys = [f"{split}/{i}" for split in ("train", "dev", "test") for i in range(100)]
    once, again, else_ = ([shapes.draw(shapes.scene(seed, key)).tobytes() for key in keys] for seed in (1, 1, 2))
    assert once == again and len(set(once + else_)) == 600
