"""One cell of each family from configuration to scores: what is measured is declared, and scoring needs the folder alone."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest
import torch
from small_vqa2 import write_vqa2

from repro import cell as cells
from repro.store import Store

SMALL = ("profile=demo", "runtime.device=cpu")
TEXTS = (
    "data.limits={train: 60, dev: 20, test: 12}", "encode.vectors=null", "train.max_epochs=2", "train.batch_size=10", "model.embed_dim=8",
    "model.hidden_dim=8", "task.keep_attention=3",
)  # fmt: skip
CELLS = {
    "seq2seq": None,  # the session's own, see `finished`
    "shared": (
        "task=toy", "data.limits={train: 60, dev: 16, test: 8}", "encode.joint=true", "model.share_embeddings=true", "model.embed_dim=8",
        "model.hidden_dim=8", "train.max_epochs=1", "decode.beam=2",
    ),
    "entailment": ("task=snli", "data=toy_entailment", *TEXTS, "mapping=sparsemax"),
    "sentiment": ("task=imdb", "data=toy_reviews", *TEXTS, "mapping=sparsemax", "model.score_dim=8"),
    "vqa": (
        "task=vqa", "data=vqa2", "data.input=pixels", "data.image_size=[16, 16]", "data.dev_share=0.2", "encode.min_answer_count=2",
        "train.max_epochs=2", "train.batch_size=8", "model.hidden_dim=16", "model.ff_dim=16", "model.flat_mlp_dim=8",
        "model.flat_out_dim=16", "model.embed_dim=8", "model.layers=1", "model.heads=2", "mapping=sparsemax", "task.keep_attention=3",
    ),
    "multilabel": (
        "task=multilabel", "data=synthetic", "data.sizes={train: 60, dev: 30, test: 20}", "task.tune.penalties=[0.1, 0.01]",
        "task.fit.iterations=10", "mapping=sparsemax",
    ),
}  # fmt: skip

EVALUATE = """
import json, pickle, sys
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import importlib
config, module, folder, test = pickle.loads(Path(sys.argv[2]).read_bytes())
monitor = SimpleNamespace(stage=lambda *a, **k: None, note=print, curve=print)
found = importlib.import_module(module).evaluate(config, Path(folder), test, monitor)
assert not {"fairseq", "hydra", "omegaconf"} & sys.modules.keys(), "scoring must not need what training needs"
print(json.dumps(found.metrics))
"""


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> str:
    """A small set of questions in the published format."""
    folder = tmp_path_factory.mktemp("vqa2")
    write_vqa2(folder)
    return f"data.path={folder}"


@pytest.fixture(scope="module")
def finished(prepared_cell, learned, questions, tmp_path_factory):
    """`finished(name)`: (cell, store) of a cell that has run, once."""
    done = {}

    def run(name: str):
        if name not in done:
            if CELLS[name] is None:
                cell, entry = learned("sparsemax")
                done[name] = cell, Store(entry.folder.parents[3])
            else:
                overrides = [*SMALL, *CELLS[name], *([questions] if name == "vqa" else [])]
                cell, store = prepared_cell(overrides), Store(tmp_path_factory.mktemp(name))
                outcome = cells.run(cell, store)
                assert outcome.state == "done", outcome.error
                done[name] = cell, store
        return done[name]

    return run


@pytest.mark.parametrize("name", CELLS)
def test_what_is_measured_is_declared(finished, name):
    cell, store = finished(name)
    found = cell.found(store)
    missing = {metric for metric in found.metrics if metric.rsplit("/", 1)[-1] not in cell.family.METRICS}
    assert not missing
    assert {"test", "dev", "train"} <= {metric.split("/", 1)[0] for metric in found.metrics}
    for system, values in found.baselines.items():
        assert any(metric in found.metrics for metric in values), system
    if name != "multilabel":
        assert found.metrics["best_epoch"] >= 1


@pytest.mark.parametrize("name", CELLS)
def test_the_folder_holds_what_scoring_needs(finished, name):
    cell, store = finished(name)
    folder = cell.entry(store).folder
    assert (folder / "weights.safetensors").is_file() and any((folder / "encoding").iterdir())
    model, encoding = cell.family.load(cell.config, folder)
    assert encoding.folder == folder / "encoding"
    if isinstance(model, torch.nn.Module):
        assert not model.training


@pytest.mark.parametrize("name", CELLS)
def test_scoring_needs_no_fairseq_and_repeats_itself(finished, root, tmp_path, name):
    cell, store = finished(name)
    asked = pickle.dumps((dict(cell.config), cell.module, str(cell.entry(store).folder), cell.tests[0]))
    (tmp_path / "asked.pickle").write_bytes(asked)
    command = [sys.executable, "-c", EVALUATE, str(root), str(tmp_path / "asked.pickle")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout.splitlines()[-1])
    assert again == {k: v for k, v in cell.found(store).metrics.items() if k in again} and again


def test_weights_that_are_shared_stay_shared(finished):
    cell, store = finished("shared")
    model, _ = cell.family.load(cell.config, cell.entry(store).folder)
    assert model.source_embed.weight is model.target_embed.weight is model.generator.weight
    other, _ = cell.family.load(cell.config, cell.entry(store).folder)
    assert torch.equal(other.generator.weight, model.generator.weight)
    plain = type(model)(model.options, *[model.generator.out_features] * 2, {"cross": model.attention.mapping})
    assert not torch.equal(plain.generator.weight, model.generator.weight), "the weights are the trained ones"


def test_decoding_does_not_name_the_training(prepared_cell, finished):
    cell, _ = finished("shared")
    other = prepared_cell([*SMALL, *CELLS["shared"], "decode.beam=3", "task.scores=[rouge_f1]"])
    assert other.training_id == cell.training_id
    assert other.evaluation_id(other.tests[0]) != cell.evaluation_id(cell.tests[0])
    longer = prepared_cell([*SMALL, *CELLS["shared"], "train.max_epochs=2"])
    assert longer.training_id != cell.training_id


def test_the_limit_of_the_test_set_does_not_name_the_training(prepared_cell, finished):
    cell, _ = finished("shared")
    other = prepared_cell([*SMALL, *CELLS["shared"], "data.limits.test=4"])
    assert other.training_id == cell.training_id
    assert other.tests[0].sha256 != cell.tests[0].sha256


def test_a_task_that_reads_other_texts_says_so(prepared_cell):
    from tasks.data import DataError

    with pytest.raises(DataError, match=r"has 1 text\(s\) an example"):
        prepared_cell([*SMALL, "task=snli", "data=toy_reviews", *TEXTS])
