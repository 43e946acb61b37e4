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
