"""What a record keeps of a finished cell, which cells are one setting, small records that make the same table; committed ones.

A committed record (docs/results/records) must not contradict itself (docs/reference/results.md).
"""

import json
import random
from dataclasses import fields, replace

import fake_family
import numpy as np
import pytest

from repro import cell as cells
from repro import plan as plans
from repro.convergence import CONVERGED, STUCK, UNKNOWN
from repro.errors import StoreError
from repro.identity import Scored, asked_id
from repro.protocol import ROOT
from repro.results import archive, records
from repro.statistics import corpus_bleu
from repro.tables import build as tables
from repro.tables import render


def test_a_record_is_the_same_from_the_store_and_from_the_cell(trained, cell, store, monkeypatch):
    monkeypatch.setattr(fake_family, "RECIPE", (3, 5))
    one, other = trained(["further"], data__shortfalls="half of it"), trained(["before"], seed=2)
    assert [*other.tests] == sorted(other.tests, key=other.evaluation_id, reverse=True), "another's data are read first"
    made = records.of_cells([one, other, one, cell(seed=3)], store)
    assert [r.cell_id for r in made] == [one.training_id, other.training_id], "each once, without the unfinished"
    read = {r.seed: r for r in records.read(store).records}
    for mine in made:
        for name in {f.name for f in fields(mine)} - {"evaluations", "levels"}:
            assert getattr(mine, name) == getattr(read[mine.seed], name), name
        theirs = read[mine.seed].evaluations
        assert {k: v.folder for k, v in mine.evaluations.items()} == {k: v.folder for k, v in theirs.items()}
    first, (test, further) = made[0], one.tests
    assert first.scored == {"test": Scored(test.sha256, 5), "further": Scored(further.sha256, 5)}
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
    folder.rename(folder.with_name(f"{folder.name}.damaged-1"))
    assert [r.scored["test"].recipe for r in records.read(store).records] == [5]


SAME = [{"seed": 2}, {"runtime__threads": 9}, {"data__path": "elsewhere"}, {"mapping__grid": {}}]
OTHER = [{key: 3} for key in ("decode__beam", "profile__name", "mapping__lam", "train__max_epochs", "data__name")]
OTHER += [{"plugins": ["gone.py"]}]


@pytest.mark.parametrize("changes", [*SAME, *OTHER], ids=lambda changes: next(iter(changes)))
def test_a_setting_is_everything_but_the_seed(trained, store, config, monkeypatch, changes):
    (one,) = records.of_cells([trained()], store)
    monkeypatch.setattr("repro.plugins.content", lambda plugin: pytest.fail("a plugin's file may be gone"))
    other = replace(one, config=config(**changes))
    assert (other.setting == one.setting) == (changes in SAME)
    for known in ({"data_sha256": "0"}, {"recipe": 9}):
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
    assert only.lost == [] and len(only.records) == 1


@pytest.mark.parametrize(
    "name, before, after, said",
    [
        ("metrics.json", '"metrics"', '"other"', "'metrics' is missing"),
        ("metrics.json", '"dev/score": 0.1', '"dev/score": "high"', "dev/score in its metrics.json is not a number"),
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


@pytest.fixture
def finished(experiment, tools, store):
    """(experiment, its slots without data, its plan, the store in which all is done)."""

    def change(page):
        page["columns"]["a"]["evaluate"] = ["duc"]
        page["columns"]["a"]["show"].append({"metric": "duc/score", "label": "duc"})
        page["rows"][1]["grids"] = {"g": {"lam": [0.0, 0.5]}}

    one = experiment(change)
    (plan,) = fake_family.planned([one], tools)
    for cell in plan.cells.values():
        outcome = cells.run(cell, store)
        assert outcome.state == "done", outcome.error
    (wanted,) = plans.outline([one], tools)
    return wanted, plan, store


def test_the_table_from_records_is_the_tables_of_the_store(finished, tmp_path):
    wanted, plan, store = finished
    found, lost = archive.collect(wanted.slots, store)
    assert len(found) == len(plan.cells) and lost == []
    path = tmp_path / "records" / "fake_demo.jsonl"
    archive.write(path, {"experiment": "fake", "profile": "demo", "arguments": []}, found)
    assert not any(word in path.read_text() for word in ("weights", str(tmp_path), "the same"))  # its constant output
    asked, again = archive.read(path)
    assert asked["experiment"] == "fake" and again == json.loads(json.dumps(found))
    restored = archive.restore(wanted, again)
    written = render.to_markdown(tables.build(restored, archive.NOWHERE))
    assert written == render.to_markdown(tables.build(plan, store)) and "always the same 2 words" in written
    told = tables.build(archive.from_records(restored, "records/fake_demo.jsonl"), archive.NOWHERE)
    assert "From records (records/fake_demo.jsonl): nothing was run" in render.to_text(told)


def test_the_curve_of_the_selecting_score_and_the_scores_of_examples_survive(finished, tmp_path):
    """On these the significance rests; without the curve a record cannot say whether a training had converged.

    Records of before have none and stay readable.
    """
    wanted, plan, store = finished
    found, _ = archive.collect(wanted.slots, store)
    first = plan.slots[0]
    record = next(r for r in found if r["training"] == first.training_id)
    score = first.results(store).metrics["dev/score"]
    assert record["curve"] == {"dev/score": pytest.approx([score, score - 1, score - 2])}
    told = []
    older = [{**r, "curve": {"metric": "score", "dev": r["curve"]["dev/score"]}} for r in found]
    rising = [{**r, "curve": {**r["curve"], "train/loss": [1.0, 2.0, 4.0]}} for r in found]
    without = [{k: v for k, v in r.items() if k != "curve"} for r in found]
    for known in (found, older, without, rising):
        restored = archive.restore(wanted, known)
        told.append(tables.build(restored, archive.NOWHERE).blocks[0].rows[0].convergence)
    states = [(CONVERGED, "best epoch 1 of 3")] * 2 + [(UNKNOWN, "best epoch 1 of 1, fewer than 3")]
    states.append((STUCK, "diverged: train/loss rose from 1 in epoch 1 to 4"))
    assert [(c.state, c.why) for c in told] == states
    recorded, stored = restored.slots[0].known, first.results(store)
    assert recorded.evaluations.keys() == stored.evaluations.keys()
    for name, level in stored.evaluations.items():
        kept = recorded.evaluations[name].values("score")
        assert kept == level.values("score") == dict(enumerate(kept.values())) != {}
    assert [one.provenance()["code"] for one in recorded.levels] == [one.provenance()["code"] for one in stored.levels]


def test_a_table_grows_from_the_records_of_before(finished, tmp_path):
    """The first cells may have run on another machine, whose store is gone."""
    wanted, plan, store = finished
    before, _ = archive.collect(wanted.slots, store)
    plan.slots[0].entry(store).path("manifest.json").unlink()
    left, lost = archive.collect(wanted.slots, store)
    assert len(left) == len(plan.cells) - 1 and [(w.row, w.seed) for w in lost] == [(0, 1)]
    text = render.to_text(tables.build(archive.restore(wanted, left), archive.NOWHERE))
    assert "1 of 2 cells are missing" in text
    found, lost = archive.collect(wanted.slots, store, before)
    kept = [any(one is old for old in before) for one in found]
    assert lost == [] and found == before and kept == [True] + [False] * (len(found) - 1)
    whole = archive.restore(wanted, found).slots[0]  # of two tables, if both have its record
    assert whole.with_tests(whole).known and whole.with_tests(replace(whole, known=None)).known is None
    other = [one | {"key": "of another configuration"} for one in before]
    fewer = [one | {"tests": {"test": one["tests"]["test"]}} for one in before]  # not evaluated on all test sets
    for unusable in (other, fewer):
        assert [(w.row, w.seed) for w in archive.collect(wanted.slots, store, unusable)[1]] == [(0, 1)]


def test_where_data_lie_names_no_other_record(config):
    here, there = config(data__mirror="/a", data__path="/a/x.tar"), config(data__mirror=None, data__path="/b/x.tar")
    assert archive.key(here, fake_family) == archive.key(there, fake_family)
    others = [config(data__path="/a/y.tar"), config(seed=2), config(decode__beam=2), config(data__content="b")]
    assert len({archive.key(c, fake_family) for c in (here, *others)}) == 5


@pytest.mark.parametrize("text", ["", "{}", '{"version": 1}\n{"key": "x"}', "no json"])
def test_a_file_without_records_is_refused(tmp_path, text):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(StoreError, match="holds no records of a table"):
        archive.read(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("asked", "cell", "said"),
    [
        ({"arguments": ["+plugins=[evil.py]"]}, {"key": "x"}, "only a command may"),
        ({}, {"training": "x"}, "version"),
        ({"sweep": "s"}, {"key": "x"}, "version"),
    ],
)
def test_records_that_name_plugins_or_have_no_key_are_refused(tmp_path, asked, cell, said):
    archive.write(tmp_path / "x.jsonl", asked, [cell])
    with pytest.raises(StoreError, match=said):
        archive.read(tmp_path / "x.jsonl")


def test_no_flipped_digit_of_a_record_is_read(tmp_path):
    path, draw = tmp_path / "x.jsonl", random.Random(0)
    records = [{"key": str(n), "trained": {"score": 38.25 + n, "text": "a\u2028b"}} for n in range(2)]
    archive.write(path, {"experiment": "fake"}, records)
    whole, asked = path.read_text(), archive.read(path)
    assert asked[0] == {"experiment": "fake", "version": archive.VERSION} and len(asked[1]) == 2
    digits = [i for i, c in enumerate(whole) if c.isdigit()]
    for _ in range(100):
        i = draw.choice(digits)
        path.write_text(whole[:i] + str((int(whole[i]) + draw.randrange(1, 10)) % 10) + whole[i + 1 :])
        with pytest.raises(StoreError, match=r"x\.jsonl holds no records of a table"):
            archive.read(path)


def test_configurations_come_back_from_the_first_line_of_a_file():
    """Each value of a node is kept once; 1 and true are two values."""
    known = {"a": {"n": {"x": 1}, "seed": 1}, "b": {"n": {"x": True}, "seed": 2}, "c": {"n": {"x": 1}, "seed": 2}}
    packed = json.loads(json.dumps(archive.packed_configs(known)))
    assert archive.configs(packed) == known and packed["nodes"] == {"n": [{"x": 1}, {"x": True}], "seed": [1, 2]}
    assert archive.configs(packed)["b"]["n"]["x"] is True and archive.configs({}) == {}


ROUNDED = 1e-3  # rounding: per-example scores are stored with four decimals, ROUGE and METEOR in per cent


@pytest.mark.parametrize("path", sorted((ROOT / "docs/results/records").glob("*.jsonl")), ids=lambda path: path.stem)
def test_no_committed_record_contradicts_itself(path):
    assert [what for one in archive.read(path)[1] for what in contradictions(one)] == []


def contradictions(record):
    """One message, with the cell, for each score that contradicts the record's per-example scores or other numbers.

    The checks cover BLEU, every score that is a mean over examples, the number of examples, perplexities (2 ** loss),
    and the dev score of the best epoch.
    """
    found = []
    for name, of_test in (record.get("tests") or {}).items():
        scored = of_test["scored"]
        size = ((scored.get("facts") or {}).get("sizes") or {}).get(name)
        for column, packed in of_test["examples"].items():
            values = archive._column(packed)
            score = f"{name}/{column.removesuffix('_statistics')}"
            told = scored["metrics"].get(score)
            if column == "bleu_statistics":
                given = [corpus_bleu(np.sum(values, 0))]
            elif column == "f1_statistics":
                hits, total = map(sum, zip(*values))
                given = [hits / total]
            else:
                given = [m * sum(values) / len(values) for m in (1, 100)]
            if told is None or not any(abs(told - one) <= ROUNDED for one in given):
                found.append(f"{score} is {told}, its {len(values):,} examples give {given[0]:.4f}")
            by_type = column.startswith("accuracy_")  # accuracy on the questions with one type of answer
            if size is not None and len(values) != size and not (by_type and len(values) < size):
                found.append(f"{score} has {len(values):,} examples, the test set {size:,}")
    trained = (record.get("trained") or {}).get("metrics") or {}
    for split in ("dev", "train"):
        loss, ppl = trained.get(f"{split}/loss"), trained.get(f"{split}/ppl")
        if loss is not None and ppl is not None and not abs(2**loss - ppl) <= 0.006 + 5e-5 * ppl:
            found.append(f"{split}/ppl is {ppl}, 2 ** {split}/loss is {2**loss:.2f}")
    curve = record.get("curve") or {}
    dev, epoch = trained.get(f"dev/{curve.get('metric')}"), int(trained.get("best_epoch", 0))
    scores = curve.get("dev") or ()
    if dev is not None and scores and not (1 <= epoch <= len(scores) and abs(scores[epoch - 1] - dev) <= ROUNDED):
        found.append(f"dev/{curve['metric']} is {dev}; the curve has another score in the best epoch, {epoch}")
    return [f"{record.get('training')}: {one}" for one in found]
