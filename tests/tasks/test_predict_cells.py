"""Trained models used on one's own input: what they say is what the test set's evaluation has stored."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
import zipfile

import forked
import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import load_file, safe_open

from tasks.data import DataError
from tasks.data.symbols import SPECIAL, UNK
from tasks.draw import terminal
from tasks.use import lines, load_cell
from tasks.use.model import Prediction


@pytest.fixture(scope="module")
def used(small_cell):
    """`used(name)`: (model, cell, the test set's evaluation)."""

    def used(name):
        cell, entry = small_cell(name)
        return load_cell(entry.folder), cell, entry.evaluation(cell.evaluation_id(cell.tests[0]))

    return used


def attention_of(level) -> dict[str, torch.Tensor]:
    return load_file(level.path("attention.safetensors"))


def test_texts_are_those_of_the_stored_evaluation(used):
    model, _, level = used("pairs")
    stored, weights = level.predictions(), attention_of(level)
    found = model.translate([r["source"] for r in stored])
    assert [p.output for p in found] == [r["output"] for r in stored]
    assert [round(p.score, 4) for p in found] == [r["score"] for r in stored]
    for i, (p, record) in enumerate(zip(found, stored)):
        assert torch.equal(p.attention, weights[f"test/{i}"])
        assert (p.source_tokens, p.output_tokens) == (record["source_tokens"], record["output_tokens"])
        assert p.unknown == [t for t in p.source_tokens if t not in model.encoding.source_vocab]


@pytest.mark.parametrize("name", ["sentiment", "reviews", "entailment"])
def test_classes_are_those_of_the_stored_evaluation(used, name):
    from tasks.classification.encode import open_encoded

    model, cell, level = used(name)
    stored, weights = level.predictions(), attention_of(level)
    found = model.classify([t[0] if len(t) == 1 else t for t in (r["texts"] for r in stored)], nbest=9)
    assert [p.output for p in found] == [r["output"] for r in stored]
    classes = open_encoded(cell.tests[0].folder).classes
    for i, (p, record) in enumerate(zip(found, stored)):
        assert np.log(p.score) == pytest.approx(record["score"], abs=1e-4)
        assert torch.equal(p.attention, weights[f"test/{i}"]) and p.source_tokens == record["source_tokens"]
        assert {c for c, _ in p.nbest} == set(classes) and sum(s for _, s in p.nbest) == pytest.approx(1, abs=1e-5)


def test_answers_are_those_of_the_stored_evaluation(used, vqa2_folder, tmp_path):
    model, _, level = used("vqa")
    stored, weights = level.predictions(), attention_of(level)
    for place in vqa2_folder.glob("*.zip"):
        zipfile.ZipFile(place).extractall(tmp_path)
    files = {str(int(p.stem[-12:])): p for p in (*tmp_path.rglob("*.jpg"), *vqa2_folder.rglob("*.jpg"))}
    there = [r for r in stored if r["image"] in files]
    assert len(there) > 15
    found = model.answer([(files[r["image"]], r["source"]) for r in there], nbest=2)
    assert [p.output for p in found] == [r["output"] for r in there]
    for p, record in zip(found, there):
        assert p.score == pytest.approx(record["score"], abs=2e-4) and p.nbest[0][1] >= p.nbest[1][1]
        torch.testing.assert_close(p.attention.T, weights[f"test/{record['index']}"], atol=1e-5, rtol=0)
    with pytest.raises(DataError, match="nowhere"):
        model.answer([("nowhere.png", "What is it?")])


def test_labels_are_those_of_the_stored_evaluation(used):
    from tasks.multilabel.encode import open_encoded

    model, cell, level = used("multilabel")
    documents = open_encoded(cell.tests[0].folder).splits["test"]
    stored = level.predictions()
    found = model.label(documents.features[: len(stored)], nbest=100)
    assert stored and [p.output for p in found] == [r["output"] for r in stored]
    names = model.encoding.labels
    for p, record in zip(found, stored):
        ranked = dict(p.nbest)
        assert [ranked[n] for n in names] == pytest.approx(record["probabilities"], abs=1e-4)
    with pytest.raises(ValueError, match=rf"\(1, 3\).* {documents.features.shape[1]}\]"):
        model.label(np.zeros((1, 3)))


def test_nbest_unknown_words_the_beam_and_what_is_of_another_task(used):
    model, *_ = used("pairs")
    word = model.encoding.source_vocab[0]
    (one,) = model.translate([f"{word} zyzzyva {SPECIAL[UNK]}"], nbest=2)
    assert one.unknown == ["zyzzyva"]
    assert one.nbest[0] == (one.output, one.score) and len(one.nbest) == 2 and one.nbest[0][1] >= one.nbest[1][1]
    with pytest.raises(ValueError, match=r"nbest=7 .*decode\.beam=7"):
        model.translate([word], nbest=7)
    wider = load_cell(model.folder, overrides=["decode.beam=7"])
    assert len(wider.translate([word], nbest=7)[0].nbest) == 7
    assert model.translate([]) == []
    with pytest.raises(ValueError, match=r"toy.* translate .* classify"):
        model.classify(["x"])
    with pytest.raises(ValueError, match=r"scripts/evaluate\.py"):
        load_cell(model.folder, overrides=["data=toy"])


LINES = [("pairs", b"a b\nc \xff d\n", 2, None, "UTF-8"), ("pairs", b"a\nb\0\n", 2, None, "NUL")]
LINES += [("entailment", b"a\tb\nonly one\n", 2, 1, ""), ("vqa", b"what is it?\n", 1, 1, "image TAB question")]
LINES += [("multilabel", b"1 2 3\n", 1, 3, "3 numbers"), ("multilabel", b"\n1 2\n", 1, 0, "0 numbers")]


def test_lines_of_every_kind_and_those_that_cannot_be_read(used, capsys, monkeypatch):
    for name, raw, line, value, said in LINES:
        with refused(DataError, line=line, value=value, says=said):
            lines.parsed(raw, used(name)[0])
    capsys.readouterr()
    assert lines.parsed("\ufeffä b\r\n\nc".encode(), used("pairs")[0]) == ["ä b", "", "c"]
    assert capsys.readouterr() == ("", "line 2 is empty, so its output has no meaning\n")
    assert lines.parsed(b"a\tb\n", used("entailment")[0]) == [("a", "b")]
    assert lines.parsed(b"a\tb\n", used("sentiment")[0]) == ["a\tb"]
    model = used("multilabel")[0]
    dense = np.zeros(model.encoding.features)
    dense[1] = 0.5
    rows = "\n".join([" ".join(map(str, dense)), ",".join(map(str, dense))]).encode()
    assert np.array_equal(lines.parsed(rows, model), [dense, dense])
    assert lines.parsed(b"", model) == []
    for wrong in ("nan", "1e999", "x"):
        two = [" ".join(map(str, row)) for row in (dense, [wrong, *dense[1:]])]
        with refused(DataError, line=2, value=wrong, says="between"):
            lines.parsed("\n".join(two).encode(), model)
    monkeypatch.delattr(model.family, "line")
    with refused(ValueError, family="tasks.cells.multilabel", lacks="`line`", step="docs/extending.md"):
        lines.parsed(b"1 2\n", model)


def test_the_heat_map_shows_zeros_weights_and_groups():
    weights = torch.tensor([[0.0, 0.5, 0.5, 0.0], [1e-6, 0.0, 0.0, 1.0]])
    one = Prediction("x y", 0.0, (), weights, ["a", "<b>", "lengthy", "d"], ["x\x01", "y"])
    said = terminal.terminal(one).splitlines()
    assert said[-2].endswith(" x\x01 · ▓▓▓▓·")
    assert said[-1].endswith("░░· · ██") and len(said) == len("lengthy") + 2
    column = terminal.LABEL + 1 + 2 * 2  # of the third source token, written downwards
    assert "".join(line[column] for line in said[:7]) == "lengthy"
    words = [t.text for t in ET.fromstring(terminal.svg(one)).iter("{http://www.w3.org/2000/svg}text")]
    assert {"lengthy", "x\ufffd"} <= set(words), "whatever a token holds"
    narrow = terminal.terminal(one, width=terminal.LABEL + 5)
    assert narrow.count("\n\n") == 1 and max(map(len, narrow.splitlines())) <= terminal.LABEL + 5
    with pytest.raises(ValueError):
        terminal.svg(Prediction("x", 0.0))


def test_the_command(used, root, tmp_path):
    model, *_ = used("pairs")
    word = model.encoding.source_vocab[0]
    outputs = model.folder.parents[3]
    command = [model.folder.name, f"paths.outputs={outputs}", "decode.beam=3", "--nbest", "3", "--heat"]
    command += ["--attention", str(tmp_path / "a.safetensors"), "--svg", str(tmp_path / "svg")]
    text = f"{word} zyzzyva\n{word}\n"
    script = root / "scripts" / "predict.py"
    done = forked.run(script, command, os.environ, tmp_path, 300, text)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "line 1: unknown words: zyzzyva\n"
    expected = load_cell(model.folder, overrides=["decode.beam=3"]).translate(text.splitlines(), nbest=3)
    assert done.stdout.startswith("\n".join(lines.printed(expected, 3)) + "\n")
    for one in expected:
        assert terminal.terminal(one) in done.stdout
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("0"), expected[0].attention) and len(file.keys()) == 2
        assert json.loads(file.metadata()["tokens"])[0]["source"] == [word, "zyzzyva"]
    assert sorted(p.name for p in (tmp_path / "svg").iterdir()) == ["1.svg", "2.svg"]
    wrong = forked.run(script, [*command[:2], "--images", "x"], os.environ, tmp_path, 300)
    assert wrong.returncode == 2 and "--images does not apply to a model of toy" in wrong.stderr
