"""The reproducibility summary says what the store knows, and nothing else."""

from __future__ import annotations

import pytest

from repro import cell as cells
from repro import plan as plans
from repro.files import read_json, write_json
from repro.plan.published import records
from repro.store import Store, provenance
from repro.tables import build as tables
from repro.tables.summary import summary

PRINTED = records({
    "rows": {"plain": {"mapping": "softmax"}, "tuned": {"mapping": "sparsegen_lin"}}, "chosen": ["mapping.lam"],
    "datasets": {"D": {"data": "invented", "score": "score"}},
    "results": [{"mapping": "plain", "dataset": "D", "metric": "score", "value": 50.0, "decimals": 1},
                {"mapping": "tuned", "dataset": "D", "metric": "score", "value": 60.0, "decimals": 1}],
})  # fmt: skip


def change(page):
    page["columns"]["a"]["published"] = [
        {"label": "paper", "dataset": "D", "metrics": ["score"], "against": ["test/score"]}
    ]
    page["deviations"] = ["a small model"]
    page["profiles"]["paper"]["seeds"] = [1, 2]


@pytest.fixture
def told(experiment, tools, store, monkeypatch):
    """`told(profile, ...)`: the parts of the summary, heading -> lines."""

    monkeypatch.setattr(provenance, "code_version", lambda: {"commit": "cafe", "dirty": False})

    def make(profile, before=lambda plan, store: None, troubles=()):
        (plan,) = plans.make([experiment(change, profile)], tools)
        for cell in plan.cells.values():
            outcome = cells.run(cell, store)
            assert outcome.state == "done", outcome.error
        before(plan, store)
        text = summary(plan, store, tables.build(plan, store, PRINTED), troubles)
        parts = [part.split("\n\n", 1) for part in text.split("\n## ")[1:]]
        return plan, {heading: body.strip().splitlines() for heading, body in parts}

    return make


def test_a_comparable_table(told, store):
    plan, parts = told("paper")
    assert list(parts) == ["Scope", "What was reproduced", "What was easy", "What was hard", "Deviations", "Cost"]
    assert parts["Scope"][0].endswith("profile paper: 2 rows, 1 columns, seeds 1, 2; 8 cells.")
    assert "- A: of 2 printed numbers 1 reproduced, 1 not reproduced." in parts["What was reproduced"]
    verdicts, ranking, *_ = parts["What was reproduced"]  # the findings of the table
    assert verdicts == "- Published numbers: 1 reproduced, 1 not reproduced." and ranking.endswith(
        ", with two runs per row."
    )
    assert "- 8 of 8 cells were finished at the first attempt." in parts["What was easy"]
    assert parts["What was hard"] == ["- A: outside the tolerance: tuned."]
    assert parts["Deviations"] == ["- a small model"]
    hours = sum(cell.found(store).seconds for cell in plan.cells.values()) / 3600
    assert parts["Cost"][0].startswith(f"- 8 cells took {hours:.2f} hours in all")


def test_what_failed_or_was_begun_again_is_hard(told):
    def spoil(plan, store: Store):
        first, second, *_ = plan.cells.values()
        first.entry(store).path("manifest.json").unlink()
        path = second.entry(store).path("provenance.json")
        write_json(path, read_json(path) | {"attempt": 3})
        second.entry(store).finish()

    _, parts = told("demo", spoil, ["fake/softmax, seed 1: failed: out of memory"])
    assert "- 14 of 16 cells were finished at the first attempt." in parts["What was easy"]
    hard = parts["What was hard"]
    assert hard[0] == "- 1 of 16 cells are missing." and hard[1].startswith("- 1 cells were restarted, 2 times in all")
    assert any("not comparable, because: profile demo" in line for line in hard)
    assert hard[-1] == "- fake/softmax, seed 1: failed: out of memory"
    assert "ours minus" not in "".join(parts["What was reproduced"]), "not comparable"


@pytest.mark.parametrize("kept, data", [(1, "the data of the paper"), (0, "data not known: no cell is finished")])
def test_the_data_are_those_of_a_finished_cell(told, kept, data):
    def spoil(plan, store: Store):
        for cell in list(plan.cells.values())[kept:]:
            cell.entry(store).path("manifest.json").unlink()

    _, parts = told("paper", spoil)
    assert f"- A: {data}." in parts["Scope"]
