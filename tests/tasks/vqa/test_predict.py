"""From a model to scores, records, stored attention and the picture (of trained cells: test_golden.py)."""

import json
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

from repro.options import read
from tasks.config.models import mappings_at
from tasks.draw import images
from tasks.vqa import metrics
from tasks.vqa.models.mcan import PLACES, Model, Options

SMALL = {"layers": 1, "hidden_dim": 32, "heads": 2, "ff_dim": 32, "dropout": 0.0, "embed_dim": 16}
SMALL |= {"flat_mlp_dim": 16, "flat_out_dim": 32, "basis_side": 4, "basis_variance": 0.02, "cnn_channels": [16, 16]}
SMALL |= {"cnn_strides": [4, 2]}
ROWS = ("softmax", "sparsemax", "continuous_softmax", "continuous_sparsemax", "continuous_mixture")


def model_of(encoded, mapping: str) -> Model:
    torch.manual_seed(0)
    return Model(read(Options, SMALL, "model"), encoded, mappings_at({"name": mapping}, PLACES))


@pytest.fixture(scope="module")
def answered(encoded, encoded_test):
    """`answered(mapping)`: the test questions answered by an untrained model, batches of ten, attention of six kept."""
    return cache(lambda mapping: metrics.evaluation(model_of(encoded, mapping), encoded_test, 10, keep=6))


def test_answers_do_not_depend_on_the_batches(encoded, encoded_test):
    model = model_of(encoded, "continuous_sparsemax")
    heard: list[float] = []
    one = metrics.evaluation(model, encoded_test, 100, keep=24)
    many = metrics.evaluation(model, encoded_test, 7, "nlvr", keep=3, done=heard.append)
    for a, b in zip(one.predictions, many.predictions, strict=True):
        assert a["output"] == b["output"] and a["score"] == pytest.approx(b["score"], abs=1.1e-4)
    assert heard[-1] == 1 and heard == sorted(heard) and len(heard) == 4
    assert {k.partition("/")[0] for k in many.metrics} == {r["set"] for r in many.predictions} == {"nlvr"}
    assert {k.partition("/")[2] for k in many.attention} == {"0", "1", "2"}
    torch.testing.assert_close(one.attention["test/2"], many.attention["nlvr/2"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mapping", ROWS)
def test_an_evaluation_says_what_the_records_say(answered, mapping):
    found = answered(mapping)
    records = list(found.predictions)
    by_hand = 100 * np.mean([r["sentence"]["accuracy"] for r in records])
    assert found.metrics["test/accuracy"] == pytest.approx(by_hand, abs=0.01) and len(records) == 24
    names = {"accuracy", "accuracy_yes_no", "accuracy_other", "attention_zeros"}
    assert {k.partition("/")[2] for k in found.metrics} == names
    assert {k.partition("/")[2] for k in (*found.metrics, *found.signatures)} <= set(metrics.MEASURED)
    assert "|n:24|types:" in found.signatures["test/accuracy"]
    for kind, key in (("yes/no", "accuracy_yes_no"), ("other", "accuracy_other")):
        of_kind = [r["sentence"][key] for r in records if r["answer_type"] == kind]
        assert found.metrics[f"test/{key}"] == pytest.approx(100 * np.mean(of_kind), abs=0.01)
    exported = json.loads(found.files["vqa_results.json"])
    assert [e["answer"] for e in exported] == [r["output"] for r in records] and exported[0]["question_id"] == 10_000
    shown = {k: v for k, v in found.attention.items() if k.startswith("test/")}
    rows, columns = len(records[5]["source_tokens"]), len(records[5]["output_tokens"])
    assert len(shown) == 6 and all(v.shape == (columns, rows) for v in shown.values())
    assert (rows, columns) == (4, 4) and "source_tokens" not in records[6]
    assert ("mu/0" in found.attention) == mapping.startswith("continuous")
    assert ("pi/0" in found.attention) == (mapping == "continuous_mixture")


def test_zeros_are_those_of_what_is_shown_not_of_the_weights_that_gave_the_moments(encoded, encoded_test):
    for mapping, some in (("softmax", False), ("continuous_softmax", False), ("continuous_sparsemax", True)):
        model = model_of(encoded, mapping)
        # one cell far above the others: the density is narrow, softmax weights are still positive
        model.reduce_image.score.register_forward_hook(lambda m, i, scores: scores * 0 + 6.0 * (torch.arange(16) == 5))
        found = metrics.evaluation(model, encoded_test, 100, keep=24)
        shown, discrete = (torch.stack([found.attention[f"{k}/{i}"] for i in range(24)]) for k in ("test", "discrete"))
        zeros = found.metrics["test/attention_zeros"]
        assert zeros == pytest.approx(shown.eq(0).double().mean().item()) and discrete.gt(0).all()
        assert (zeros > 0.05) == some, mapping


def test_the_picture_shows_every_row_and_says_how_its_questions_were_chosen(answered, tmp_path):
    panels = []
    for mapping in ("softmax", "continuous_mixture"):
        kept = answered(mapping)
        records, arrays = {r["index"]: r for r in kept.predictions}, {k: v.numpy() for k, v in kept.attention.items()}
        panels.append(images.panel(mapping, {"name": mapping}, records, arrays))
    chosen = images.choose(panels, 2)
    assert len(set(chosen)) == 2 == len({panels[0].records[i]["image"] for i in chosen})
    seen: list[str] = []

    def picture(key: str) -> np.ndarray:
        seen.append(key)
        return np.full((32, 32, 3), 200, np.uint8)

    data = images.write(panels, chosen, picture, tmp_path / "a", (".png", ".svg"), images.CHOICE)
    assert seen == [panels[0].records[i]["image"] for i in chosen]
    with Image.open(tmp_path / "a.png") as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 1000
    assert "<svg" in (text := (tmp_path / "a.svg").read_text()) and "every row answers right" in text
    assert [q["question"] for q in json.loads(data.read_text())["questions"]] == chosen


def test_chosen_questions_are_in_the_order_that_the_caption_says():
    def record(kind: str, image: str, output: str) -> dict:
        return {"answer_type": kind, "image": image, "output": output, "references": ["x"]}

    records = [record("yes/no", "a", "x"), record("other", "b", "y"), *[record("other", "c", "x")] * 2]
    other = [r | {"output": "x"} for r in records]
    attention = {f"test/{i}": torch.zeros(1) for i in range(4)}
    both = [images.Panel(n, None, dict(enumerate(r)), attention) for n, r in (("one", records), ("two", other))]
    assert images.choose(both, 4) == [2, 1, 0, 3]  # right in both rows, wrong in one, yes/no, a second one of image c
    assert images.choose(both, 2) == [2, 1]
