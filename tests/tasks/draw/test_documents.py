"""The figures of Laha et al. 2018 from finished cells."""

from __future__ import annotations

from tasks.draw import documents


def cell(row, value, seed, setting="mean_labels", name="synthetic", **scores):
    config = {"data": {"name": name, "setting": setting, "value": value}, "seed": seed}
    return row, config, {f"test/{score}": number for score, number in scores.items()} | {"dev/f1": 0.0}


def scored(row, value, seed, setting, f1):
    return cell(row, value, seed, setting, f1=f1, labels=2.0 + seed / 10, jsd=0.1 * seed, true_labels=2.0)


def test_every_figure_that_has_cells_is_written_with_its_numbers(tmp_path):
    made = documents.collect(
        scored(row, value, seed, "length", 0.8 + 0.01 * i + 0.02 * (seed == 2))
        for i, row in enumerate(("softmax+log", "sparsemax+huber"))
        for value in (200, 300)
        for seed in (1, 2)
    )
    files = {path.name: path.read_bytes() for path in documents.write(made, "laha2018", tmp_path)}
    drawn = {f"laha2018_{figure}.{ending}" for figure in ("figure5", "jsd") for ending in ("png", "svg")}
    assert files.keys() == drawn | {"laha2018_figure5_numbers.csv"}, "of no cells with a mean number of labels"
    assert b"<svg" in files["laha2018_jsd.svg"] and files["laha2018_jsd.png"][:4] == b"\x89PNG"
    lines = files["laha2018_figure5_numbers.csv"].decode().splitlines()
    assert len(lines) == 1 + 4 * 4 * 2 and "length,200,sparsemax+huber,f1,1,0.81" in lines
    row = "| document length 200 | 0.810 ±0.014 | 0.820 ±0.014 | 2.15 ±0.07 | 2.15 ±0.07 |"
    assert row in documents.page(made).splitlines()
    assert not documents.write(documents.collect([]), "laha2018", tmp_path)


def test_points_are_collected_from_finished_cells():
    cells = [cell("softmax+log", 3, 1, f1=0.8), cell("sparsemax+hinge", 2, 1, f1=0.6)]
    cells += [cell("softmax+log", 2, 1, f1=0.7), cell("softmax+log", 3, 2, f1=0.9)] * 2  # a cell of two slots
    found = documents.collect([*cells, cell("softmax+log", 2, 1, name="yeast", f1=0.1)])
    assert found[["row", "value", "seed", "number"]].values.tolist() == [
        ["softmax+log", 2, 1, 0.7],
        ["softmax+log", 3, 1, 0.8],
        ["softmax+log", 3, 2, 0.9],
        ["sparsemax+hinge", 2, 1, 0.6],
    ]
