"""What a record keeps of a finished cell, and which cells are the same setting."""

from __future__ import annotations

from dataclasses import fields, replace

import fake_family
import pytest

from repro.identity import asked_id
from repro.results import records


def test_a_record_is_the_same_from_the_store_and_from_the_cell(trained, cell, store, monkeypatch):
    monkeypatch.setattr(fake_family, "RECIPE", (3, 5))
    one, other = trained(["further"], data__shortfalls="half of it"), trained(["before"], seed=2)
    assert [*other.tests] == sorted(other.tests, key=other.evaluation_id, reverse=True), "another's data are read first"
    made = records.of_cells([one, other, one, cell(seed=3)], store)
    assert [r.cell_id for r in made] == [one.training_id, other.training_id], "each once, without the unfinished"
    read = {r.seed: r for r in records.read(store).records}
    for mine in made:
        for name in {f.name for f in fields(mine)} - {"evaluations"}:
            assert getattr(mine, name) == getattr(read[mine.seed], name), name
        theirs = read[mine.seed].evaluations
        assert {k: v.folder for k, v in mine.evaluations.items()} == {k: v.folder for k, v in theirs.items()}
    first, (test, further) = made[0], one.tests
    assert first.scored == {"test": records.Scored(test.sha256, 5), "further": records.Scored(further.sha256, 5)}
    assert (first.data_sha256, first.recipe, first.module) == (one.prepared.sha256, 3, "fake_family")
    assert first.asked_id() == asked_id(one.config, fake_family) == read[1].asked_id()
    assert first.shortfalls["train"] == ("half of it",) and first.config == one.config


def test_two_evaluations_of_a_test_set_are_two_records_and_one_moved_aside_is_none(trained, store, monkeypatch):
    monkeypatch.setattr(fake_family, "RECIPE", (3, 5))
    first = trained()
    monkeypatch.setattr(fake_family, "RECIPE", (3, 6))
    second = trained()
    assert first.training_id == second.training_id
    assert sorted(r.scored["test"].recipe for r in records.read(store).records) == [5, 6]
    (now,) = records.of_cells([second], store)
    folder = now.evaluations["test"].folder
    folder.rename(folder.with_name(f"{folder.name}{records.ASIDE}1"))
    assert [r.scored["test"].recipe for r in records.read(store).records] == [5]


@pytest.mark.parametrize(
    "changes, same",
    [
        ({"seed": 2}, True), ({"runtime__threads": 9}, True), ({"data__path": "elsewhere"}, True), ({"mapping__grid": {}}, True),
        ({"plugins": ["gone.py"]}, True), ({"decode__beam": 3}, False), ({"profile__name": "cpu"}, False), ({"mapping__lam": 2.0}, False),
        ({"train__max_epochs": 2}, False), ({"data__name": "b"}, False),
    ],
    ids=lambda c: next(iter(c)) if isinstance(c, dict) else "",
)  # fmt: skip
def test_a_setting_is_everything_but_the_seed(trained, store, config, monkeypatch, changes, same):
    (one,) = records.of_cells([trained()], store)
    monkeypatch.setattr("repro.plugins.content", lambda plugin: pytest.fail("a plugin's file may be gone"))
    other = replace(one, config=config(**changes))
    assert (other.setting == one.setting) == same
    for known in ({"data_sha256": "0"}, {"recipe": 9}, {"plugins": ("mine.py",)}):
        assert replace(one, **known).setting != one.setting


def test_a_folder_that_cannot_be_read_is_named_with_the_reason(trained, store):
    kept, damaged = trained(seed=1), trained(seed=2)
    damaged.entry(store).path("weights.safetensors").write_text("changed")
    read = records.read(store)
    assert [r.cell_id for r in read.records] == [kept.training_id]
    (said,) = read.lost
    assert damaged.training_id in said and "weights.safetensors is not what was written" in said
    assert len(records.read(store, check=False).records) == 2
    only = records.read(store, lambda task, mapping, key: key == kept.training_id)
    assert records.read(store, ids=[kept.training_id]).lost == only.lost == [] and len(only.records) == 1


@pytest.mark.parametrize(
    "name, before, after, said",
    [
        ("metrics.json", '"metrics"', '"other"', "metrics.json holds no metrics"),
        ("metrics.json", '"dev/score": 0.1', '"dev/score": 1e301', "dev/score of its metrics.json is not a number"),
        ("metrics.json", '"dev/score": 0.1', '"dev/score": "high"', "dev/score of its metrics.json is not a number"),
        ("config.yaml", "name: fake", "name: other", "its config.yaml is that of other/softmax"),
        ("config.yaml", "profile:", "other:", "profile"),
    ],
)
def test_a_record_that_no_table_can_show_is_named(trained, store, name, before, after, said):
    folder = trained().entry(store).folder
    for path in folder.rglob(name):  # of the training and of its evaluation
        path.write_text(path.read_text().replace(before, after))
    read = records.read(store, check=False)
    assert read.records == [] and len(read.lost) == 1 and said in read.lost[0] and str(folder) in read.lost[0]
