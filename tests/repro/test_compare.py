"""Finished cells side by side: what is averaged, what is kept apart, what filters mean, what is drawn."""

import csv
import re
from dataclasses import replace

import fake_family
import pytest
from made_report import Page

from repro import cell as cells
from repro.errors import ConfigError, Refused
from repro.report import comparison, sweeps
from repro.results import records
from repro.tables import compare, render
from repro.tables.compare import Lost


@pytest.fixture
def grid(trained):
    """Two settings with two seeds each."""
    return [trained(mapping__lam=lam, seed=seed) for lam in (0.0, 0.5) for seed in (1, 2)]


def settings(store, **filters):
    found = compare.fitting(records.read(store).records, filters)
    return [row for group in compare.groups(found) for row in group.rows]


def seeds(rows):
    return [[r.seed for r in row.results] for row in rows]


def differs(row):
    """What names a row besides the mapping's parameters."""
    return {key: value for key, value in row.point.items() if not key.startswith("mapping.")}


def test_a_parameter_that_training_searches_is_told_as_chosen(trained, store, monkeypatch):
    """And of the values to search, only those for the row's own mapping tell rows apart."""
    monkeypatch.setattr(fake_family, "SEARCH", "task.tune", raising=False)
    asked = [(9.0, {"softmax": {"lam": [1, 2]}, "entmax": {"alpha": [1]}}), (9.0, {"softmax": {"lam": [3]}})]
    asked += [(0.5, {"entmax": {"alpha": [2]}})]
    cells = [trained(task__tune=tune, mapping__lam=lam) for lam, tune in asked]
    assert [c.parameters for c in cells] == ["lam=chosen on dev"] * 2 + ["lam=0.5"]
    chosen = {c.training_id: {"selected/lam": float(n)} for n, c in enumerate(cells)}
    found = [replace(r, metrics={**r.metrics, **chosen[r.cell_id]}) for r in records.read(store).records]
    details = {row.detail for group in compare.groups(found) for row in group.rows}
    searched = {f"lam={n} chosen on dev, task.tune.softmax.lam={lam}" for n, lam in enumerate(([1, 2], [3]))}
    assert details == searched | {"lam=0.5"}


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"data__content": "b"}, {"data.content": "b"}),
        ({"profile__name": "cpu", "train__max_epochs": 2}, {"profile.name": "cpu"}),
        ({"optim__lr": 0.5}, {"optim.lr": 0.5}),
        ({"optim__lr": 0.1000001}, {"optim.lr": 0.1000001}),
        ({"decode__beam": 3}, {"decode.beam": 3}),
        ({"data__test": "another"}, {}),
    ],
)
def test_what_differs_is_never_averaged_and_says_so(trained, store, changes, says):
    trained(seed=1)
    trained(seed=2, **changes)
    found = settings(store)
    assert seeds(found) in ([[1], [2]], [[2], [1]])
    assert any(says.items() <= row.point.items() for row in found), [row.point for row in found]
    assert len({row.detail for row in found}) == 2, "two settings have two names"


def test_architectures_are_told_apart_by_name_and_by_what_differs_within_one(trained, store):
    trained(model__name="lstm", model__hidden_dim=4, model__layers=1)
    for heads in (2, 4):
        trained(model__name="transformer", model__hidden_dim=8, model__heads=heads)
    transformers = [{"model.name": "transformer", "model.heads": heads} for heads in (2, 4)]
    assert [differs(row) for row in settings(store)] == [{"model.name": "lstm"}, *transformers]


def test_a_plans_point_names_a_row_and_what_it_leaves_open_is_added(trained, store):
    small, large = trained(optim__lr=0.5, train__max_epochs=3), trained()
    trained(decode__beam=3)  # the same training, decoded in another way
    points = {one.training_id: {"setting": name} for one, name in ((small, "small"), (large, "large"))}
    (group,) = compare.groups(records.read(store).records, points)
    beams = [{"setting": "large", "decode.beam": beam} for beam in (1, 3)]
    assert [differs(row) for row in group.rows] == [*beams, {"setting": "small"}]


def test_data_of_other_content_under_the_same_configuration(trained, store):
    one = trained(seed=1)
    other = cells.prepare(replace(one, config={**one.config, "seed": 2}))
    other = replace(other, prepared=replace(other.prepared, sha256="f" * 64))
    assert cells.run(other, store).state == "done"
    found = settings(store)
    assert {row.point["data content"] for row in found} == {one.prepared.sha256[:8], "ffffffff"}


def test_a_metric_that_some_cells_lack_says_of_how_many_it_is(trained, store):
    trained(seed=1)
    trained(["duc"], seed=2)
    table = compare.table(compare.groups(records.read(store).records), "t", "T")
    (row,) = table.blocks[0].own
    assert row.value("duc/score").summary.n == 1 and row.value("test/score").summary.n == 2
    text = render.to_text(table)
    assert "only 1 of its 2 cells have duc/score" in text


def test_cells_without_a_result_are_in_every_file_and_rows_keep_the_swept_key(trained, store, tmp_path):
    """If all but one cell of a sweep failed, no key varies among the rest."""
    trained(mapping__lam=0.5)
    one = compare.Lost("0f3a", "fake", "softmax", {"optim.lr": 0.5, "mapping.lam": 2}, 1, "failed", "no memory")
    rest = [compare.Lost(f"c{n}", "fake", "softmax", {}, n, "never run") for n in range(compare.MOST_LOST)]
    found = records.read(store).records
    groups = compare.groups(found, {found[0].cell_id: {"optim.lr": "0.5", "mapping.lam": "0.5"}})
    assert "lr=" not in render.to_text(compare.table(compare.groups(found), "table", "Sweep"))
    comparison.write(compare.table(groups, "table", "Sweep", lost=[one]), tmp_path, [one])
    files = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    assert "(lam=0.5, optim.lr=1)" in files["table.txt"] and "1 of 2 cells finished" in files["table.txt"]
    for name in ("table.txt", "table.md"):
        assert "WARNING: 1 of 2 cells failed." in files[name], name
        assert "fake: softmax (optim.lr=0.5, lam=2), seed 1: failed: no memory" in files[name], name
    assert "no memory" in files["dashboard.html"]
    said = compare.told([one, *rest], 1)
    every = f"of {len(rest) + 2} cells"
    assert said[0] == f"WARNING: 1 {every} failed, {len(rest)} {every} without a result."
    assert len(said) == compare.MOST_LOST + 2 and said[-1].startswith("and 1 more")


def test_softmax_comes_first_and_then_the_given_order(trained, store):
    made = [trained(mapping__name=name) for name in ("entmax", "softmax", "fusedmax", "sparsemax")]
    found = {r.cell_id: r for r in records.read(store).records}
    given = [found[made[i].training_id] for i in (3, 0, 1, 2)]
    (group,) = compare.groups(given)
    assert [row.label for row in group.rows] == ["softmax", "sparsemax", "entmax", "fusedmax"]


def test_filters(grid, store):
    assert [row.point["mapping.lam"] for row in settings(store, **{"mapping.lam": "0.5"})] == [0.5]
    assert seeds(settings(store, task="fake", mapping="softmax", seed="2"))[0] == [2]
    assert seeds(settings(store, seed="[1,2]")) == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    "filters, said",
    [
        ({"mapping.lamb": "1"}, ["mapping.lamb is unknown", "'mapping.lam'"]),
        ({"taks": "fake"}, ["taks is unknown", "'task'"]),
        ({"beam": "1"}, ["'decode.beam'"]),
        ({"task": "fale"}, ["no finished cell has task=fale", "'fake'"]),
        ({"mapping.lam": "0.7"}, ["mapping.lam=0.7", "existing: 0, 0.5"]),
    ],
)
def test_a_filter_that_fits_nothing_names_what_there_is(grid, store, filters, said):
    with pytest.raises(ConfigError) as caught:
        settings(store, **filters)
    assert all(text in str(caught.value) for text in said), caught.value


def test_each_run_has_a_line_for_each_test_set(trained, store, cell, tmp_path):
    """All keys that differ, all scores in full precision; cells without a result have a line, too."""
    asked = [(lam, lr, seed) for lam in (0.1, 0.25) for lr in (0.5, 1.0) for seed in (1, 2)]
    made = {trained(("duc",), mapping__lam=a, optim__lr=b, seed=c).training_id: (a, b, c) for a, b, c in asked}
    point = {"mapping.lam": 9.0, "optim.lr": 1.0, "model": "x"}
    lost = Lost("abc", "fake", "softmax", point, 3, "failed", 'no, "disk"')
    found = records.read(store).records
    comparison.write(compare.table(compare.groups(found), "table", "T", lost=[lost]), tmp_path, [lost])
    assert (tmp_path / "table.tex").read_text().count(r"\begin{tabular}") == 1
    *lines, last = csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())
    assert sorted((made[x["cell"]], x["set"]) for x in lines) == sorted((a, s) for a in asked for s in ("duc", "test"))
    by_id = {r.cell_id: r for r in found}
    for line in lines:
        record, told = by_id[line["cell"]], (line["mapping.lam"], line["optim.lr"], line["seed"])
        assert tuple(map(float, told)) == made[line["cell"]] and line["state"] == "done" and line["reason"] == ""
        assert line["folder"] == str(record.folder) and float(line["seconds"]) == record.seconds
        of_set = {k.rpartition("/")[2]: v for k, v in record.metrics.items() if k.startswith(f"{line['set']}/")}
        others = {k: v for k, v in record.metrics.items() if k.partition("/")[0] not in ("test", "duc")}
        assert of_set and others
        for name, value in {**of_set, **others}.items():
            assert float(line[name]) == value, name
        assert not {f"{s}/{name}" for s in ("test", "duc") for name in of_set} & {*line}
    told = ("mapping.lam", "optim.lr", "model", "seed", "set", "state", "reason", "cell", "score", "folder")
    assert [last[key] for key in told] == ["9.0", "1.0", "x", "3", "", "failed", 'no, "disk"', "abc", "", ""]


def test_baselines_and_data_of_other_content_stand_apart(grid, trained, store):
    trained(data__content="another", data__test="u")
    found = compare.table(compare.groups(records.read(store).records), "t", "T").blocks[0]
    assert sum(row.baseline for row in found.rows) == 2 and all("; data " in r.detail for r in found.rows if r.baseline)
    assert sum(line.startswith("Of softmax (") and "Data: " in line for line in found.footers) == 2


def test_the_dashboard_has_the_numbers_of_all_cells(grid, trained, store, tmp_path):
    trained(mapping__lam=0.5, mapping__name="sparsemax")
    found = records.read(store).records
    folder = tmp_path / "written"
    files = comparison.write(compare.table(compare.groups(found), "table", "T <b>", ["A note."]), folder)
    assert {*files} == {f for f in folder.rglob("*") if f.is_file()} and files[-1] == folder / "dashboard.html"
    text = files[-1].read_text()
    page = Page(text)
    assert "T <b>" in page.text and "A note." in page.text and "could not be made" not in text
    views = [a for tag, a in page.elements if a.get("class") == "view"]
    assert [v["data-task"] for v in views] == ["fake"]
    of_sparsemax = sum(a.get("data-mapping") == "sparsemax" for tag, a in page.elements if tag == "tr")
    assert of_sparsemax == 3, "three tables"
    table = compare.table(compare.groups(found), "", "").blocks[0]
    means = {cell for row in page.rows for cell in row}
    assert {v.text() for row in table.rows for v in row.values if v.summary} <= means
    assert not re.search(r'(src|href)="(?!#|data:image)', text), "it loads nothing"


def test_too_few_and_too_many_settings_are_not_drawn(trained, store, monkeypatch):
    trained()
    (group,) = compare.groups(records.read(store).records)
    with pytest.raises(Refused, match="No number was swept, and fewer than two settings have both a score and a share"):
        sweeps.pictures(compare.measured(group))
    trained(mapping__lam=0.5)
    monkeypatch.setattr(comparison, "MOST_LINES", 1)
    table = compare.table(compare.groups(records.read(store).records), "", "T")
    assert "2 settings are too many for one drawing" in comparison.dashboard(table)
