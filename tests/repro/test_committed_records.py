"""The committed records (docs/results/records): a record must not contradict itself (docs/reference/results.md)."""

import pytest
from scores_oracles import bleu

from repro.protocol import ROOT
from repro.results import archive

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
        for column, values in archive.columns(of_test["examples"]).items():
            score = f"{name}/{column.removesuffix('_statistics')}"
            told = scored["metrics"].get(score)
            if column == "bleu_statistics":
                given = bleu([[sum(column) for column in zip(*values)]])
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


def test_bleu_without_a_hit_of_four_words_is_sacrebleus():
    rows = [[3.0, 1.0, 0.0, 0.0, 5.0, 4.0, 3.0, 2.0, 5.0, 6.0], [2.0, 1.0, 0.0, 0.0, 4.0, 3.0, 2.0, 1.0, 4.0, 4.0]]
    (theirs,) = bleu([[sum(column) for column in zip(*rows)]])
    examples = archive.packed({"sentence": {"bleu_statistics": row}} for row in rows)
    record = {"tests": {"test": {"scored": {"metrics": {"test/bleu": theirs}}, "examples": examples}}}
    assert theirs > 0 and contradictions(record) == []
    record["tests"]["test"]["scored"]["metrics"]["test/bleu"] += 0.01
    assert len(contradictions(record)) == 1


def test_a_record_that_contradicts_itself_is_told_with_its_cell():
    trained = {"metrics": {"dev/accuracy": 61.0, "best_epoch": 2.0, "dev/loss": 2.0, "dev/ppl": 4.0}}
    scored = {"metrics": {"test/accuracy": 75.0}, "facts": {"sizes": {"test": 4}}}
    examples = archive.packed({"sentence": {"accuracy": v}} for v in (1, 1, 1, 0))
    record = {"training": "3f", "trained": trained, "curve": {"metric": "accuracy", "dev": [50.0, 61.0, 60.0]}}
    record |= {"tests": {"test": {"scored": scored, "examples": examples}}}
    assert contradictions(record) == []
    trained["metrics"] |= {"dev/accuracy": 64.0, "dev/ppl": 4.5}
    scored["metrics"]["test/accuracy"], scored["facts"]["sizes"]["test"] = 78.0, 5
    curve = "dev/accuracy is 64.0; the curve has another score in the best epoch, 2"
    told = [
        "test/accuracy is 78.0, its 4 examples give 0.7500",
        "test/accuracy has 4 examples, the test set 5",
        "dev/ppl is 4.5, 2 ** dev/loss is 4.00",
        curve,
    ]
    assert contradictions(record) == [f"3f: {one}" for one in told]
