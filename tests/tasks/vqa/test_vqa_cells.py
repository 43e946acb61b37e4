"""Cells of visual questions, from a configuration to the store: what rows share, seeds, two processes, a demo row."""

from __future__ import annotations

import json

import pytest

from repro import cell as cells
from repro.store import Store
from tasks.data import DataUnavailable

TINY = "task=vqa profile=demo train.max_epochs=2 train.batch_size=16 model.hidden_dim=16 model.heads=2".split()
TINY += "model.ff_dim=16 model.embed_dim=8 model.flat_mlp_dim=8 model.flat_out_dim=16 model.cnn_channels=[8,8]".split()
TINY += "model.cnn_strides=[4,2] model.basis_side=4 model.basis_variance=0.02 encode.min_answer_count=2".split()
TINY += "task.keep_attention=6 runtime.device=cpu".split()
ROWS = ("softmax", "continuous_sparsemax", "continuous_mixture")


def done(cell, store):
    """What is found of the cell after its training."""
    outcome = cells.run(cell, store)
    assert outcome.state == "done", outcome.error
    return cell.results(store)


@pytest.fixture(scope="module")
def cell_of(prepared_cell, vqa2_folder, tmp_path_factory):
    own = [
        "data=vqa2",
        f"data.path={vqa2_folder}",
        "data.input=pixels",
        "data.image_size=[32,32]",
        "data.dev_share=0.2",
    ]
    root = tmp_path_factory.mktemp("data")
    return lambda *more: prepared_cell([*TINY, *own, f"paths.data={root}", *more])


@pytest.fixture(scope="module")
def trained(cell_of, tmp_path_factory):
    """`trained(mapping)`: (cell, what was found), each trained once."""
    store, finished = Store(tmp_path_factory.mktemp("outputs")), {}

    def trained(mapping: str):
        if mapping not in finished:
            cell = cell_of(f"mapping={mapping}")
            finished[mapping] = cell, done(cell, store)
        return finished[mapping]

    return trained


@pytest.mark.parametrize("mapping", ROWS)
def test_a_cell_from_configuration_to_metrics(trained, mapping):
    _, found = trained(mapping)
    metrics, test = found.metrics, found.evaluations["test"]
    assert found.folder.parent.name == mapping  # a density is the mapping
    assert 0 <= metrics["test/accuracy"] <= 100 and metrics["best_epoch"] in (1, 2)
    assert {"test/accuracy_yes_no", "test/accuracy_other", "train/seconds", "dev/accuracy"} <= set(metrics)
    assert metrics["test/attention_zeros"] == 0 or mapping == "continuous_sparsemax"
    counts = [found.facts["counts"], found.tests["test"]["counts"]]
    assert sum(n for c in counts for k, n in c.items() if "unreadable image" in k) == 2
    exported = json.loads(test.path("vqa_results.json").read_text())
    assert [e["answer"] for e in exported] == [r["output"] for r in test.predictions()] and len(exported) == 24


def test_rows_share_everything_but_the_mapping(trained):
    rows = [trained(mapping) for mapping in ROWS]
    assert len({found.metrics["train/loss"] for _, found in rows}) == 3
    assert len({cell.training_id for cell, _ in rows}) == 3 and len({cell.prepared.sha256 for cell, _ in rows}) == 1


def test_questions_alone_are_learned(prepared_cell, mirror, tmp_path):
    """VQA v2 without images, questions that tell the answer: the most frequent answer is beaten."""
    data = ["data=vqa2_subset", f"data.mirror={mirror}", "data.input=none", f"paths.data={tmp_path}"]
    how = "encode.min_answer_count=5 train.max_epochs=4 schedule.warmup_updates=20 optim.lr=0.01".split()
    cell = prepared_cell([*TINY, *data, *how])
    found = done(cell, Store(tmp_path / "out"))
    assert found.metrics["test/accuracy"] > found.baselines["most frequent answer"]["test/accuracy"]
    assert "test/accuracy_number" in found.metrics


@pytest.mark.slow
@pytest.mark.parametrize("mapping", ["softmax", "continuous_sparsemax"])
def test_a_demo_row_answers_from_the_image(prepared_cell, tmp_path, mapping):
    """As `make reproduce-table2` trains it: minutes."""
    try:
        cell = prepared_cell(["task=vqa", "profile=demo", "runtime.device=cpu", f"mapping={mapping}"])
    except DataUnavailable as error:
        pytest.skip(f"easy-VQA cannot be had: {error}")
    found = done(cell, Store(tmp_path))
    question_only = found.baselines["question only (its most frequent answer)"]
    assert found.metrics["test/accuracy"] >= 80
    for kind in ("yes_no", "other"):
        assert found.metrics[f"test/accuracy_{kind}"] > question_only[f"test/accuracy_{kind}"] + 3
    assert (found.metrics["test/attention_zeros"] > 0.1) == (mapping == "continuous_sparsemax")
