"""The papers' figures from trained cells, and the table of properties: what is drawn or printed, what is refused."""

import json

import pytest

from tasks.commands import figures, properties, reproduce
from tasks.config import compose
from tasks.config.request import REPRODUCE, Request
from tasks.data import DataUnavailable


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
    tiny = "profile=demo data=toy_entailment data.limits={train:120,dev:20,test:20} encode.vocab_size=null".split()
    tiny += "model.embed_dim=8 model.hidden_dim=8 train.max_epochs=1 rows=softmax|fusedmax seeds=1".split()
    tiny += [f"paths.outputs={tmp_path}", f"paths.data={isolated / 'data'}", "runtime.workers=1", "runtime.device=cpu"]
    assert reproduce.main(Request.read(tiny, REPRODUCE, ["niculae2017_table1"])) == 0
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


WRONG = ("sum normalization++", "full domain")


@pytest.mark.parametrize("K, q", [(3, 0.4), (5, 1.5)])
def test_laha_table_1_and_its_lipschitz_constants(K, q):
    """Every printed mark is confirmed but one: sum normalization++ has no value where the scores sum to 0."""
    for row in properties.rows(K, 0.5, q):
        for prop, printed in zip(properties.PROPERTIES, (*row.printed.split(), "yes")):
            found, wrong = properties.verdict(prop, row, K, printed), (row.label, prop) == WRONG
            assert (found, printed) == (("no", "yes") if wrong else (printed, printed)), (row.label, prop)
        steepest = properties.steepness(row.function, properties.probes(K, q))
        bound = row.l2
        if bound == float("inf"):
            assert row.lipschitz == "inf" and steepest > 500, row.label
        else:
            assert 0.995 * bound < steepest < bound * (1 + 1e-6), row.label
        if row.label.startswith("sparsehourglass"):
            assert steepest > 1 + 1 / (K * q)  # the printed constant does not hold
        if row.label == "softmax":
            assert steepest <= 0.5 + 1e-12  # the printed 1 holds but is not tight
    for K, q, constant in ((2, 0.1, 7.8102), (10, 1.0, 1.1402)):
        assert properties.hourglass_lipschitz(K, q) == pytest.approx(constant, abs=5e-5)
