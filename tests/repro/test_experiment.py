"""An experiment's page is typed: what is misspelt or points nowhere is named, with the nearest name."""

from dataclasses import replace

import fake_family
import pytest

from repro.errors import ConfigError
from repro.plan import experiment as experiments
from repro.plan import published


def put(*path_and_value):
    *path, last, value = path_and_value

    def change(page):
        node = page
        for part in path:
            node = node[part]
        node[last] = value

    return change


@pytest.mark.parametrize(
    "change, said",
    [
        (put("rows", 0, "lable", "x"), ["rows.plain.lable", "did you mean 'label'"]),
        (put("columns", "a", "show", 0, "metrc", "x"), ["show.score.metrc", "'metric'"]),
        (put("columns", "a", "select", {"metric": "dev/score", "mode": "most"}), ["select.mode='most'", "max, min"]),
        (put("profiles", "demo", "seeds", ["two"]), ["profiles.demo.seeds=['two'] has 'two' at place 1, which must be a whole number"]),
        (put("rows", 0, {"label": "x"}), ["rows.x.mapping must be set"]),
        (put("rows", 1, "label", "plain"), ["two rows are called 'plain'"]),
        (put("rows", 1, "grids", {"papr": "own"}), ["'papr'", "no column uses"]),
        (put("rows", 1, "grids", {"g": "owm"}), ["grids.g='owm'", "`own`"]),
        (put("rows", 1, "grids", {"g": {"lam": 1}}), ["{'lam': 1}", "[values]"]),
        (put("profiles", "demo", "columns", ["a", "bb"]), ["profiles.demo.columns names 'bb'", "did you mean 'b'"]),
        (put("profiles", "demo", "seeds", []), ["at least one seed"]),
        (put("profiles", "demo", "comparabel", True), ["comparabel", "'comparable'"]),
        (put("profiles", {}), ["profile='demo' is unknown"]),
        (put("title", 3), ["title=3 must be text"]),
        (put("draw", ["plain", "tunde"]), ["draw names 'tunde'", "did you mean 'tuned'"]),
        (put("columns", "a", "published", [{"label": "p", "dataset": "D", "metrics": ["X"], "against": ["test/scores"]}]),
         ["'test/scores', which is not shown", "'test/score'"]),
        (put("columns", "a", "published", [{"label": "p", "dataset": "D", "metrics": ["X", "Y"], "against": ["test/score"]}]),
         ["as many `against`"]),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else "",
)  # fmt: skip
def test_what_is_wrong_is_named(experiment, change, said):
    with pytest.raises(ConfigError) as caught:
        experiment(change)
    for text in ("experiment fake", *said):
        assert text in str(caught.value)


def test_metrics_of_a_further_test_set_and_without_a_set():
    metrics = ("dev/loss", "duc2004/score", "dev/last_gain", "best_epoch")
    assert experiments.unmeasured(metrics, ["duc2004"], fake_family.METRICS) == []


PRINTED = {(row, "Corpus", "BLEU"): None for row in ("theirs", "tuned")}
GROUP = {"label": "p", "dataset": "Corpus", "metrics": ["BLEU"], "against": ["test/score"]}
LOOSE = [
    ("theirs", {}, []),
    ("their", {}, ["rows.plain.published names mapping 'their' (did you mean 'theirs'?)", "has theirs, tuned"]),
    ("theirs", {"dataset": "Korpus"}, ["columns.a.published names dataset 'Korpus' (did you mean 'Corpus'?)"]),
    ("theirs", {"metrics": ["ROUGE"]}, ["columns.a.published names metric 'ROUGE'", "has BLEU"]),
]


@pytest.mark.parametrize("row, group, said", LOOSE)
def test_what_the_paper_does_not_print_is_named(experiment, row, group, said):
    def change(page):
        page["published"] = "t"
        page["rows"][0]["published"] = row
        page["columns"]["a"]["published"] = [{**GROUP, **group}]

    found = published.loose_ends(experiment(change), PRINTED)
    assert len(found) == bool(said) and all(text in found[0] for text in said)
    (none, *_) = published.loose_ends(replace(experiment(change), published=""), [])
    assert "no `published` file: none" in none
