"""scripts/reproduce.py from the outside."""

from __future__ import annotations

import pytest

from tasks.commands import reproduce
from tasks.config import compose


def test_lists_the_experiments(script, root):
    done = script("reproduce.py")
    assert done.returncode == 0, done.stderr
    for path in (root / "configs" / "experiment").glob("*.yaml"):
        assert path.stem in done.stdout


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["niculae_table2"], ["'niculae_table2'", "niculae2017_table2"]),
        (["demo", "profile=demmo"], ["'demmo'", "demo"]),
        (["demo", "train.max_epoch=3"], ["max_epoch"]),
        (["demo", "runtime.workers=0"], ["runtime.workers=0", "at least 1"]),
        (["demo", "optim.lr=-1"], ["optim.lr=-1", "above 0"]),
        (["demo", "+optim.foo=1"], ["optim.foo is unknown"]),
        (["demo", "seeds=one"], ["seeds=one", "whole numbers"]),
        (["demo", "add=fusedmax,lam=-1"], ["lam=-1", "lam >= 0"]),
        (["demo", "add=fusedmx"], ["fusedmx", "'fusedmax'"]),
        (["demo", "add=fusedmax,lam"], ["add=fusedmax,lam", "add=entmax,alpha=1.5"]),
        (["demo", "~seed"], ["~seed", "seed=..."]),
    ],
    ids=lambda v: " ".join(v),
)
def test_errors_are_one_clear_message(script, tmp_path, arguments, said):
    done = script("reproduce.py", *arguments, f"paths.outputs={tmp_path}", f"paths.data={tmp_path}")
    assert done.returncode == 2
    for text in said:
        assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "cells").exists(), "the configuration is checked before anything is done"


def test_a_part_of_a_page_keeps_its_order():
    [one], rest = reproduce.asked(["laha2018_table2"], ["rows=sparse*|softmax", "columns=enfr_demo", "seeds=2"])
    assert [row.label for row in one.rows] == ["softmax", "sparsemax", "sparsegen-lin", "sparsehourglass"]
    assert ([column.key for column in one.columns], one.seeds, rest) == (["enfr_demo"], (2,), [])


def test_an_experiment_on_other_data_says_so_and_shows_no_printed_numbers():
    """Headings, printed numbers and the notes on the setting follow what is used."""
    given = [
        "profile=demo",
        "data=files",
        "data.path=/some where/pairs.tsv",
        "train.max_epochs=4",
        "train.batch_size=16",
    ]
    (one,), _ = reproduce.asked(["laha2018_table2"], given)
    assert one.columns[0].label == "pairs.tsv (data=files), fren_demo" and not any(c.published for c in one.columns)
    (demo,), _ = reproduce.asked(["demo"], ["data=files", "data.path=pairs.tsv"])
    assert not demo.opening and demo.draw, "the opening is about the demo's own data"
    (same,), _ = reproduce.asked(["laha2018_table2"], ["profile=demo", "data.mirror=/mirror", "train.max_epochs=4"])
    assert same.columns[0].label.startswith("FR-EN, LibreOffice help") and same.columns[0].published
    (alone,), _ = reproduce.asked(["laha2018_table2"], ["columns=fren_demo", "data=files", "data.path=a.tsv"])
    assert [c.label for c in alone.columns] == ["a.tsv (data=files)"]
    with compose.composer() as composed:
        config = composed(["task=translation", "mapping=softmax", "train.max_epochs=4", "train.batch_size=16"])
    (said,) = [d for d in config["task"]["deviations"] if d.startswith("optim:")]
    assert "batches of 16, 4 epochs (paper: SGD at 1, halving, 64, 13 epochs)" in said
