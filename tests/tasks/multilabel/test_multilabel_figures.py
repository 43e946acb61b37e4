"""The figures of Laha et al. 2018 from finished cells."""

from __future__ import annotations

from tasks.multilabel import figures
from tasks.multilabel.figures import Point


def point(row, setting, value, **scores):
    return Point(setting, value, row, {k: dict(enumerate(v, 1)) for k, v in scores.items()})


def test_figures_are_written_with_their_numbers(tmp_path):
    scores = {"labels": (2.0, 2.1), "jsd": (0.1, 0.2), "true_labels": (2.0, 2.0)}
    made = [
        point(row, setting, value, f1=(0.8 + 0.01 * i, 0.82), **scores)
        for i, row in enumerate(["softmax+log", "sparsemax+huber"])
        for setting, value in (("mean_labels", 2), ("mean_labels", 3), ("length", 200))
    ]
    files = figures.draw(made, "f1", ("mean_labels", "length"), tmp_path / "figure5")
    assert [f.suffix for f in files] == [".png", ".svg"]
    svg = files[1].read_text()
    again = figures.draw(made, "f1", ("mean_labels", "length"), tmp_path / "figure5")[1].read_text()
    assert svg == again, "the same numbers give the same file"
    assert files[0].read_bytes()[:4] == b"\x89PNG"
    lines = figures.numbers(made).splitlines()
    assert len(lines) == 1 + 6 * 4 * 2
    assert "mean_labels,2,sparsemax+huber,f1,1,0.81" in lines


def test_points_are_collected_from_finished_cells():
    def cell(row, value, seed, f1, name="synthetic"):
        config = {"data": {"name": name, "setting": "mean_labels", "value": value}, "seed": seed}
        return row, config, {"test/f1": f1, "dev/f1": 0.0}

    cells = [cell("softmax+log", 3, 1, 0.8), cell("sparsemax+hinge", 2, 1, 0.6)]
    cells += [cell("softmax+log", 2, 1, 0.7), cell("softmax+log", 3, 2, 0.9)]
    found = figures.collect([*cells, cell("softmax+log", 2, 1, 0.1, name="yeast")])
    assert [(p.row, p.value) for p in found] == [("softmax+log", 2), ("softmax+log", 3), ("sparsemax+hinge", 2)]
    assert found[1].scores == {"f1": {1: 0.8, 2: 0.9}}


def test_every_figure_that_has_cells_is_written(tmp_path):
    made = [point("sparsemax+hinge", "length", 200, f1=(0.8,), labels=(2.0,), jsd=(0.1,), true_labels=(2.0,))]
    names = {path.name for path in figures.write(made, "laha2018", tmp_path)}
    drawn = {f"laha2018_{name}.{end}" for name in ("figure5", "jsd") for end in ("png", "svg")}
    assert names == drawn | {"laha2018_figure5_numbers.csv"}
    assert not figures.write([], "laha2018", tmp_path)
