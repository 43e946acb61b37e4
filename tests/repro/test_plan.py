"""From rows, columns, grids and seeds to cells."""

from __future__ import annotations

import fake_task
import pytest

from sparse_attention.repro import cell as cells
from sparse_attention.repro import plan as plans

ROWS = [
    {"label": "plain", "published": "plain", "overrides": ["mapping.name=softmax"]},
    {
        "label": "tuned",
        "published": "tuned",
        "overrides": ["mapping.name=sparsegen_lin"],
        "grid": {"mapping.lam": [-1.0, 0.0, 0.5]},
    },
]
COLUMNS = [
    {
        "label": "A",
        "overrides": [],
        "select": {"metric": "dev/score"},
        "show": [{"metric": "test/score", "label": "score"}],
    },
    {
        "label": "B",
        "overrides": ["task.shift=5"],
        "select": {"metric": "dev/score"},
        "show": [{"metric": "test/score", "label": "s"}],
    },
]
EXPERIMENT = {"name": "fake", "title": "A table", "profile": "demo", "rows": ROWS, "columns": COLUMNS, "seeds": [1, 2]}


def number(text: str):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@pytest.fixture
def compose(config):
    """Hydra's part, played by splitting at the equals sign; `bad=...` is an error."""

    def composed(overrides):
        if any(o.startswith("bad") for o in overrides):
            raise ValueError("no such key: bad")
        return config(**{k.replace(".", "__"): number(v) for k, v in (o.split("=", 1) for o in overrides)})

    return composed


def prepare(config):
    return cells.prepare(config, None)


def test_points_of_a_grid():
    assert plans.points(None) == plans.points({}) == [()]
    assert plans.points({"a": [1, 2], "b": ["x"]}) == [(("a", 1), ("b", "x")), (("a", 2), ("b", "x"))]


def test_every_place_of_the_table_has_its_slots(compose):
    plan = plans.make(EXPERIMENT, compose, prepare)
    assert len(plan.slots) == 2 * (1 + 3) * 2 == len(plan.cells)
    assert len(plan.at(0, 0)) == 2 and len(plan.at(1, 1)) == 6
    chosen = next(s for s in plan.at(1, 1) if s.point == (("mapping.lam", -1.0),) and s.seed == 2)
    assert chosen.cell.config["mapping"] == {"name": "sparsegen_lin", "lam": -1}
    assert chosen.cell.config["task"]["shift"] == 5 and chosen.cell.seed == 2


def test_grid_by_column(compose):
    row = ROWS[0] | {"grids": {"small": {"mapping.lam": [0.5]}, "large": {"mapping.lam": [0.1, 0.2, 0.3]}}}
    columns = [COLUMNS[0] | {"grid": "small"}, COLUMNS[1] | {"grid": "large"}]
    plan = plans.make(EXPERIMENT | {"rows": [row], "columns": columns, "seeds": [1]}, compose, prepare)
    assert (len(plan.at(0, 0)), len(plan.at(0, 1))) == (1, 3)


def test_equal_cells_are_run_once(compose):
    twins = [ROWS[0], ROWS[0] | {"label": "again"}]
    plan = plans.make(EXPERIMENT | {"rows": twins}, compose, prepare)
    assert len(plan.slots) == 8 and len(plan.cells) == 4


def test_user_overrides_win(compose):
    plan = plans.make(EXPERIMENT, compose, prepare, ["train.max_epochs=9", "task.shift=2"])
    assert {s.cell.config["train"]["max_epochs"] for s in plan.slots} == {9}
    assert {s.cell.config["task"]["shift"] for s in plan.slots} == {2}


def test_one_seed_given_by_the_user_is_one_run(compose):
    """seed=7 on the command line makes all seeds of the experiment the same cell: that is one run, not two."""
    plan = plans.make(EXPERIMENT, compose, prepare, ["seed=7"])
    assert {s.cell.seed for s in plan.slots} == {7}
    assert len(plan.at(0, 0)) == 1


def test_values_keep_their_kind_in_overrides():
    row = {"label": "r", "overrides": [], "grid": {"a": [True, None, 0.5, "word"]}}
    experiment = {"columns": [{"overrides": ["c=1"]}], "rows": [row], "seeds": [3]}
    made = [overrides for *_, overrides in plans.requests(experiment, ["z=1"])]
    assert made == [["c=1", f"a={v}", "seed=3", "z=1"] for v in ("true", "null", "0.5", "word")]


def test_all_errors_are_collected(compose):
    rows = [ROWS[0] | {"overrides": ["bad=1"]}, ROWS[1], ROWS[0] | {"label": "third", "overrides": ["bad=2"]}]
    with pytest.raises(plans.PlanError) as caught:
        plans.make(EXPERIMENT | {"rows": rows}, compose, prepare)
    said = str(caught.value)
    assert "plain" in said and "third" in said and "tuned" not in said
    assert "no such key: bad" in said and "A table" in said


def test_a_column_without_data_says_why_and_the_others_stay(compose):
    columns = [COLUMNS[0], COLUMNS[1] | {"overrides": ["task.data.missing=1"]}]
    plan = plans.make(EXPERIMENT | {"columns": columns}, compose, prepare, unavailable=fake_task.DataMissing)
    assert plan.unavailable == {1: "it is behind a licence"}
    assert {s.column for s in plan.slots} == {0} and len(plan.slots) == 8


def test_missing_data_raises_where_it_is_not_expected(compose):
    with pytest.raises(fake_task.DataMissing):
        plans.make(EXPERIMENT, compose, prepare, ["task.data.missing=1"])
