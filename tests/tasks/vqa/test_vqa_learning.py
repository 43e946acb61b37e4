"""The demo's row on easy-VQA, trained as `make reproduce-table2` trains it: minutes."""

from __future__ import annotations

import pytest

from sparse_attention.repro import cell as cells
from sparse_attention.repro.store import Store
from tasks.data.errors import DataUnavailable

ROW = ("task=vqa", "model=mcan_small", "optim=adam", "profile=demo", "runtime.device=cpu")


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["discrete", "continuous_sparsemax"])
def test_a_demo_row_answers_from_the_image(prepared_cell, tmp_path, reduction):
    try:
        cell = prepared_cell([*ROW, f"model.reduction={reduction}"])
    except DataUnavailable as error:
        pytest.skip(f"easy-VQA cannot be had: {error}")
    store = Store(tmp_path)
    outcome = cells.run(cell, store)
    assert outcome.state == "done", outcome.error
    metrics, question_only = (
        cell.entry(store).metrics()["metrics"],
        cell.prepared.baselines["question only (its most frequent answer)"],
    )
    assert metrics["test/accuracy"] >= 80
    for kind in ("yes_no", "other"):
        assert metrics[f"test/accuracy_{kind}"] > question_only[f"test/accuracy_{kind}"] + 3
    assert (metrics["test/attention_zeros"] > 0.1) == (reduction == "continuous_sparsemax")
