"""Models as ONNX files: onnxruntime computes what torch does, for any number of inputs and any length."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasks.data.images import decode
from tasks.use import load_cell, onnx
from tasks.use.export import export

TEXTS = {name: ["text"] for name in ("sentiment", "reviews")}
TEXTS |= {name: ["premise", "hypothesis"] for name in ("entailment", "esim_rows")}


def session(file: Path) -> Callable[..., list[np.ndarray]]:
    """`run(name=array, ...)`: the outputs of onnxruntime."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    made = runtime.InferenceSession(str(file))
    return lambda **given: made.run(None, {name: np.asarray(x) for name, x in given.items()})


def sharpened(entry, factor: float = 2.0) -> Any:
    """The cell's model with larger weights: after a few steps of training, all outputs are still alike."""
    pytest.importorskip("onnxscript", reason="onnx is not installed")
    model = load_cell(entry.folder)
    model.model.cpu()
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.mul_(factor if parameter.ndim > 1 else 1.0)
    return model


def padded_ids(model: Any, texts: list[str]) -> np.ndarray:
    """As docs/guides/predict.md says: 4 plus the line in dict.txt, 3 for an unknown word, padded on the right with 1."""
    lines = (model.folder / "encoding/dict.txt").read_text().splitlines()
    ids = {line.split()[0]: 4 + i for i, line in enumerate(lines)}
    rows = [[ids.get(word, 3) for word in text.split()] for text in texts]
    return np.array([row + [1] * (max(map(len, rows)) - len(row)) for row in rows])


def drawn(size: int, rows: int, words: int) -> Tensor:
    """Ids [rows, words] of texts of any length, padded on the right."""
    padding = torch.arange(words) >= torch.randint(1, words + 1, (rows, 1))
    return torch.randint(4, size, (rows, words)).masked_fill(padding, 1)


def close(found: np.ndarray, expected: Tensor, relative: float = 1e-6) -> None:
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=relative * float(expected.abs().max()), rtol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_a_classifier(small_cell, tmp_path, name):
    # the GRUs start with large weights; of twice these, torch's own float32 is 5e-6 from float64
    model, fields = sharpened(small_cell(name)[1], 1.0 if name == "entailment" else 2.0), TEXTS[name]
    run, words = session(onnx.write(model, tmp_path)), model.encoding.vocabulary
    texts = [words[0], f"{words[2]} unseen {words[3]}", " ".join(words[:12])]
    given = dict(zip(fields, (texts, [texts[2], words[1], texts[1]])))
    (found,) = run(**{field: padded_ids(model, text) for field, text in given.items()})
    told = model.classify(list(zip(*given.values(), strict=True)))
    assert [model.encoding.classes[i] for i in found.argmax(-1)] == [p.output for p in told]
    torch.manual_seed(0)
    for n in range(1, 18):
        texts = [drawn(len(words), 1 + n % 3, n + i) for i in range(len(fields))]
        with torch.no_grad():
            expected = model.model(texts, [text.ne(1).sum(1) for text in texts])[0].log_softmax(-1)
        close(run(**dict(zip(fields, texts, strict=True)))[0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vqa", "questions"])
def test_answers_to_questions(small_cell, vqa2_folder, tmp_path, name):
    model = sharpened(small_cell(name)[1])
    run, words, spec = session(onnx.write(model, tmp_path)), model.encoding.words, model.encoding.image_spec
    files = sorted(vqa2_folder.rglob("*.jpg"))[:3]
    images = torch.zeros(3, spec.grid[0] * spec.grid[1], spec.channels)
    if name == "vqa":
        images = torch.stack([torch.from_numpy(decode(file.read_bytes(), spec.grid)) for file in files])
    texts = [words[0], f"{words[2]} unseen {words[3]}", " ".join(words[:5])]
    (p,) = run(tokens=padded_ids(model, texts), images=images)
    told = model.answer(list(zip(files, texts, strict=True)))
    assert [model.encoding.answers[i] for i in p.argmax(1)] == [one.output for one in told]
    torch.manual_seed(0)
    for n in range(1, 18):
        rows = 1 + n % 3
        tokens = drawn(len(words), rows, n)
        shown = torch.randint(256, (rows, *spec.grid, 3), dtype=torch.uint8) if name == "vqa" else images[:rows]
        with torch.no_grad():
            expected = model.model(tokens, shown, torch.arange(rows))[0].sigmoid()
        close(run(tokens=tokens, images=shown)[0], expected)


@pytest.mark.slow
def test_a_multilabel_model_in_an_exported_folder(small_cell, tmp_path):
    pytest.importorskip("onnxscript", reason="onnx is not installed")
    entry = small_cell("multilabel")[1]
    model, run = load_cell(entry.folder), session(export(str(entry.folder), tmp_path / "out", onnx=True) / onnx.FILE)
    names = np.array(model.encoding.labels)
    for n in (1, 2, 7):
        features = 3 * np.random.default_rng(n).normal(size=(n, model.encoding.features))
        p, labels = run(features=features)
        assert ["; ".join(names[row]) for row in labels] == [one.output for one in model.label(features)]
        scores = model.model.model.scores(features)
        close(p, torch.from_numpy(model.model.output.distribution(scores)), 1e-9)


UNSAID = [("pairs", "toy .*by beam search"), ("esim", "sparsemap_matching of snli_esim is not over rows")]


@pytest.mark.parametrize(("name", "why"), UNSAID)
def test_a_model_that_onnx_cannot_express_is_refused(small_cell, composed, tmp_path, name, why):
    with pytest.raises(ValueError, match=f"no model.onnx: .*{why}.*; without --onnx"):
        export(str(small_cell(name)[1].folder), tmp_path / "out", onnx=True)
    assert not (tmp_path / "out").exists()
    for task, mapping in (("imdb", "continuous_softmax"), ("vqa", "tvmax"), ("summarization", "sparsemax")):
        assert task in onnx.refused(composed([f"task={task}", f"mapping={mapping}"]))
