"""Drawings: figures of finished cells and what they need, and of attention (of the papers' functions: test_claims_page.py)."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from repro.store import Evaluation
from tasks import data
from tasks.commands import attention_of, figures, reproduce
from tasks.config import compose
from tasks.config.request import REPRODUCE, Request
from tasks.data import DataUnavailable
from tasks.draw import attention, documents


def cell(row, value, seed, setting="mean_labels", name="synthetic", **scores):
    config = {"data": {"name": name, "setting": setting, "value": value}, "seed": seed}
    return row, config, {f"test/{score}": number for score, number in scores.items()} | {"dev/f1": 0.0}


def scored(row, value, seed, setting, f1):
    return cell(row, value, seed, setting, f1=f1, labels=2.0 + seed / 10, jsd=0.1 * seed, true_labels=2.0)


def test_every_figure_that_has_cells_is_written_with_its_numbers(tmp_path):
    rows = enumerate(("softmax+log", "sparsemax+huber"))
    asked = [(i, row, value, seed) for i, row in rows for value in (200, 300) for seed in (1, 2)]
    made = documents.collect(scored(row, v, s, "length", 0.8 + 0.01 * i + 0.02 * (s == 2)) for i, row, v, s in asked)
    files = {path.name: path.read_bytes() for path in documents.write(made, "laha2018", tmp_path)}
    drawn = {f"laha2018_{figure}.{ending}" for figure in ("figure5", "jsd") for ending in ("png", "svg")}
    assert files.keys() == drawn | {"laha2018_figure5_numbers.csv"}, "of no cells with a mean number of labels"
    assert b"<svg" in files["laha2018_jsd.svg"] and files["laha2018_jsd.png"][:4] == b"\x89PNG"
    lines = files["laha2018_figure5_numbers.csv"].decode().splitlines()
    assert len(lines) == 1 + 4 * 4 * 2 and "length,200,sparsemax+huber,f1,1,0.81" in lines
    row = "| document length 200 | 0.810 ±0.014 | 0.820 ±0.014 |"
    assert f"{row} 2 |" in documents.page(made).splitlines()
    few = made[(made["row"] == "softmax+log") | (made["seed"] == 1)]
    assert " | 2, 1 |" in documents.page(few)
    assert not documents.write(documents.collect([]), "laha2018", tmp_path)
    cells = [cell("softmax+log", 3, 1, f1=0.8), cell("sparsemax+hinge", 2, 1, f1=0.6)]
    cells += [cell("softmax+log", 2, 1, f1=0.7), cell("softmax+log", 3, 2, f1=0.9)] * 2  # a cell of two slots
    found = documents.collect([*cells, cell("softmax+log", 2, 1, name="yeast", f1=0.1)])
    points = [("softmax+log", 2, 1, 0.7), ("softmax+log", 3, 1, 0.8), ("softmax+log", 3, 2, 0.9)]
    points += [("sparsemax+hinge", 2, 1, 0.6)]
    assert [*map(tuple, found[["row", "value", "seed", "number"]].values.tolist())] == points


def rows():
    density, found = {"mu": 0.5, "sigma": 0.1, "density": 0.25}, []
    for label, mapping, more in (("softmax", "softmax", {}), ("ours", "continuous_sparsemax", density)):
        records, attention = {}, {}
        for index, length in ((0, 3), (4, 11), (7, 30)):
            tokens = [f"w{i}" for i in range(length)]
            records[index] = {"source_tokens": tokens, "output_tokens": ["x&y", "</s>"], "references": ["r"]}
            attention[f"test/{index}"] = np.full((2, length), 1 / length)
            for what, value in more.items():
                attention[f"{what}/{index}"] = np.full((2, length) if what == "density" else 2, value)
        found.append((label, mapping, records, attention))
    del found[1][3]["test/7"]
    return found


def test_a_figure_shows_the_density_where_there_is_one(tmp_path):
    assert attention.choose_sentences(rows(), 5) == [4, 0]
    examples = [attention.stored(rows(), i) for i in (4, 0)]
    (first, second) = (heat for line in examples[0].lines for heat in line)
    assert first.weights.shape == (2, 11) and second.weights.tolist() == [[0.25] * 11] * 2
    data = attention.write(examples, tmp_path / "f", (".svg", ".png"), "caption")
    assert (tmp_path / "f.png").stat().st_size > 5000 and "</svg>" in (tmp_path / "f.svg").read_text(encoding="utf-8")
    told = json.loads(data.read_text(encoding="utf-8"))
    assert [e["sentence"] for e in told["examples"]] == ["test sentence 4", "test sentence 0"]
    assert told["examples"][1]["rows"][1]["mu"] == [0.5, 0.5] and "mu" not in told["examples"][1]["rows"][0]
    with pytest.raises(attention_of.DataUnavailable, match="'mine' has no stored attention"):
        attention_of.stored(SimpleNamespace(cells=[("mine", None)], test=lambda cell: Evaluation(tmp_path)))


def test_a_figure_has_a_line_a_row_and_its_data_all_structures(tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "STRUCTURES", 1)
    p = np.array([[0.75, 0.25], [0.25, 0.75]])
    example = attention.pair(["a", "b&"], ["c", "<d>"], "x")
    attention.align(example, "softmax", "y", p, np.zeros(0), np.zeros((0, 2), dtype=int))
    attention.align(example, "matching", "x", p, np.array([0.75, 0.25]), np.array([[0, 1], [1, 0]]))
    titles = [[heat.title for heat in line] for line in example.lines]
    assert titles == [["softmax: y (x)"], ["matching: x (x)", "0.75, 1 more"]]
    data = attention.write([example], tmp_path / "f", [".svg"], "caption")
    assert "0.75, 1 more" in (tmp_path / "f.svg").read_text(encoding="utf-8")
    (told,) = json.loads(data.read_text(encoding="utf-8"))["examples"]
    assert told["second"] == ["c", "<d>"] and told["rows"][0]["structures"] == []
    assert told["rows"][1]["structures"][1] == {"weight": 0.25, "words": [1, 0]}
    assert attention.one_hot(np.array([1, -1]), 2).tolist() == [[0, 1], [0, 0]]


PAIRS = "data=toy_entailment data.limits={train:120,dev:20,test:20} encode.vocab_size=null".split()
PAIRS += "model.embed_dim=8 model.hidden_dim=8 train.max_epochs=1".split()


def trained(experiment, overrides, tmp_path, isolated):
    """Train the cells of an experiment at the smallest size; the overrides that find them."""
    places = [f"paths.outputs={tmp_path}", f"paths.data={isolated / 'data'}", "runtime.workers=1"]
    asked = ["profile=demo", *overrides, *places, "runtime.device=cpu"]
    assert reproduce.main(Request.read(asked, REPRODUCE, [experiment])) == 0
    return asked


@pytest.mark.slow
def test_a_sentence_of_ones_own_goes_through_every_row(tiny, tmp_path, isolated, monkeypatch):
    """Train the three rows at toy size; a stored sentence, given again, comes out again."""

    def generated(manifest, options, root, progress):
        return data.open_data({"name": "toy", "limits": dataclasses.asdict(options.limits)}, root, progress)

    monkeypatch.setattr(data.set_module("libreoffice_help"), "load", generated)
    toy = "encode.tokenizer=none encode.subword=none encode.vocab_size=null encode.min_count=1".split()
    with pytest.raises(attention_of.DataUnavailable, match="'discrete softmax' is not finished"):
        attention_of.finished("martins2020_nmt", ["profile=demo", f"paths.outputs={tmp_path}"])
    changed = [o for o in tiny if not o.startswith(("task=", "profile="))]
    asked = trained("martins2020_nmt", [*toy, *changed], tmp_path, isolated)
    found = attention_of.finished("martins2020_nmt", asked)
    with pytest.raises(ValueError, match=r"column 'iwslt' is not in martins2020_nmt .*: demo"):
        attention_of.finished("martins2020_nmt", asked, "iwslt")
    source = " ".join(attention_of.stored(found)[0][2][0]["source_tokens"])
    mine, kept = attention_of.translated(found, source), attention.stored(attention_of.stored(found), 0)
    texts, continuous = {"label", "mapping", "output"}, {"density", "mu", "sigma"}
    for row, other in zip(mine.rows, kept.rows):
        assert all(row[what] == other[what] for what in texts)
        for what in other.keys() - texts:
            np.testing.assert_allclose(row[what], other[what], rtol=1e-4, atol=2e-6)
    assert [row.keys() - texts - {"weights"} for row in mine.rows] == [set(), continuous, continuous]


@pytest.mark.slow
def test_structures_of_a_finished_table_average_to_the_alignment(tmp_path, isolated):
    found = attention_of.finished("peters2018_snli", trained("peters2018_snli", PAIRS, tmp_path, isolated))
    pairs = [(one["texts"], one["label"]) for one in attention_of.examples(found, (0, 3), "texts")]
    with pytest.raises(ValueError, match=r"\[99\] have no stored texts"):
        attention_of.examples(found, [3, 99], "texts")
    examples = attention_of.aligned(found, [*pairs, (("red apple", "green apple here"), "own")])
    assert [e.about["class"] for e in examples] == [*[label for _, label in pairs], "own"]
    for example in examples:
        first, second = example.about["first"], example.about["second"]
        for row in example.rows:
            assert np.shape(row["alignment"]) == (len(first), len(second))
            assert bool(row["structures"]) == row["label"].startswith("SparseMAP")
            if row["structures"]:
                weights = [structure["weight"] for structure in row["structures"]]
                assert weights == sorted(weights, reverse=True)
                matrices = [attention.one_hot(np.array(s["words"]), len(second)) for s in row["structures"]]
                average = sum(w * matrix for w, matrix in zip(weights, matrices))
                np.testing.assert_allclose(average, row["alignment"], atol=1e-5)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_asks_for_rows_and_columns_that_there_are(name):
    figure = figures.FIGURES[name]
    page = compose.page("experiment", figure.experiment)
    labels = {row["label"] for row in page["rows"]}
    assert {*figure.rows, *filter(None, [figure.points])} <= labels
    assert figure.column is None or figure.column in page["columns"]
    assert len(figure.second) in (0, len(figure.text)) and name.rpartition("_")[0] in figure.experiment + name


def test_what_a_figure_does_not_take_and_unfinished_cells_are_refused_before_data_are_read(tmp_path):
    for name, asked, said in (
        ("martins2020_figure3", {"text": ["a"]}, "--text is not for martins2020_figure3"),
        ("niculae2017_figure1", {"text": ["a"], "second": ["b"]}, "--with goes with --text, and only in niculae"),
        ("peters2018_figure1", {"second": ["b"]}, "--with goes with --text"),
    ):
        with pytest.raises(ValueError, match=said):
            figures.make([name], figures.Options(**asked))
    folders = [f"paths.outputs={tmp_path}", f"paths.data={tmp_path / 'data'}"]
    with pytest.raises(DataUnavailable, match="the row 'softmax' is not finished") as refused:
        figures.make(["peters2018_figure2"], figures.Options(folders))
    assert "scripts/reproduce.py peters2018_" in refused.value.next_step and not (tmp_path / "data").exists()


@pytest.mark.slow
def test_points_and_rows_of_a_finished_table_are_drawn(tmp_path, isolated):
    """Two rows at toy size; then the grid points of one of them, and a pair classified by each row."""
    tiny = trained("niculae2017_table1", [*PAIRS, "rows=softmax|fusedmax", "seeds=1"], tmp_path, isolated)
    asked = figures.Options(tiny, text=["red apple", "a cat"], second=["green apple here", "a dog"])
    svg, data = figures.make(["niculae2017_figure3"], asked)
    assert svg.parent == tmp_path / "figures" / "niculae2017_table1" and svg.stem == "niculae2017_figure3_demo"
    examples = json.loads(data.read_text())["examples"]
    assert [len(e["source"]) for e in examples] == [2, 2]
    for example in examples:
        (row,) = example["rows"]
        assert [label.partition(":")[0] for label in row["output"]] == ["softmax", "fusedmax"]
        assert all(abs(sum(weights) - 1) < 1e-4 for weights in row["weights"])
    with pytest.raises(ValueError, match="2 --text and 1 --with"):
        figures.make(["niculae2017_figure3"], figures.Options(tiny, text=["a", "b"], second=["c"]))
