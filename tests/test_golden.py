"""Golden cells: tiny ones of every family, whose stored scores say whether the code still computes what it computed.

A difference fails until the family's RECIPE is raised and `make golden` has recorded the cell again, so that no finished cell
made by other code is taken for a new one. Recording refuses a changed score under an unchanged recipe and an unchanged configuration (which makes another cell by itself).

Every cell is trained for at most a hundred updates and in float64, so that machines, instruction sets and backends of the kernels
agree: they add in another order, and an update passes their rounding on, grown. All of them stay within TOLERANCE, which a
changed line of training does not. Not covered, for it has no float64: the fused attention of float32 (tests/sparse_attention).
"""

import gzip
import hashlib
import importlib
import json
import os
import runpy
from pathlib import Path

import tasks.fairseq_plugin.compat  # noqa: F401  # isort: skip  # before fairseq, for Python 3.14
import fairseq.utils
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from repro import cell as cells
from repro.identity import as_named, recipes
from repro.store import Store
from tasks.config.compose import composer, module_of
from tasks.data.progress import NullProgress

FOLDER = Path(__file__).parent / "golden"
PAIRS = "task=toy data.limits={train:400,dev:30,test:30} train.batch_size=20".split()
LSTM = [*PAIRS, "model.embed_dim=32", "model.hidden_dim=32", "train.max_epochs=5"]
TEXTS = (
    "data.limits={train: 200, dev: 30, test: 40}",
    "train.max_epochs=3",
    "train.best_metric=loss",  # the weights of the last epoch
    "model.embed_dim=24",
    "model.hidden_dim=16",
    "optim.lr=0.01",
)
MULTILABEL = "task=multilabel data.sizes={train:120,dev:40,test:60} task.fit.iterations=8".split()
MULTILABEL += ["task.tune.penalties=[0.1,0.001]"]
ADAM = "mapping=fusedmax schedule=linear schedule.warmup_updates=20 optim.label_smoothing=0.1 encode.joint=true".split()
ADAM += "model.share_embeddings=true model.residual=true model.score_scale=0.25".split()
SGD = "mapping=sparsemax model=lstm_opennmt optim.lr=0.005 optim.normalize=sentences decode.beam=3".split()
SGD += "schedule=latched_halving schedule.start_decay_at=3 decode.length=none decode.stop=best".split()
WIDE = "model=transformer_small model.hidden_dim=32 model.ff_dim=48 model.heads=2 train.max_epochs=3".split()
WIDE += "optim.lr=0.002 encode.joint=true mapping=entmax mapping.alpha=learned".split()
WIDE += ["+mapping.at.cross={name: fusedmax}"]
IMAGES = "task=vqa data=vqa2 data.path={vqa2} data.input=pixels data.dev_share=0.2 encode.min_answer_count=1".split()
IMAGES += "train.max_epochs=4 train.best_metric=loss train.batch_size=16 mapping=continuous_sparsemax".split()
IMAGES += "model.discrete=softmax model.hidden_dim=32 model.ff_dim=32".split()
REVIEWS = ["task=imdb", "data=toy_reviews", *TEXTS]
CELLS = {
    "seq2seq_adam": [*LSTM, *ADAM],
    "seq2seq_opennmt": [*LSTM, *SGD],
    "seq2seq_transformer": [*PAIRS, *WIDE],
    "classification_density": [*REVIEWS, "mapping=continuous_sparsemax", "model.discrete=softmax", "model.rbf=8"],
    "classification_pairs": ["task=snli", "data=toy_entailment", *TEXTS, "mapping=oscarmax"],
    "vqa_density": IMAGES,
    "multilabel_log": [*MULTILABEL, "mapping=softmax", "task.loss=log"],
    "multilabel_huber": [*MULTILABEL, "mapping=sparsemax", "task.loss=huber"],
    "multilabel_hinge": [*MULTILABEL, "mapping=sparsemax", "task.loss=hinge"],
    "multilabel_hourglass": [*MULTILABEL, "mapping=sparsehourglass", "task.loss=hinge"],
}
UNSTABLE = ("seconds", "per_second", "iterations")  # times; steps of a solver that stops by a tolerance
TOLERANCE = 1e-6  # of every score, relative


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    """Models, losses and optimisers in float64. fairseq takes the gradient's norm in float32, and torch's the same one in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(fairseq.utils, "clip_grad_norm_", clipped)
    yield
    torch.set_default_dtype(before)


def clipped(parameters, most: float, aggregate_norm_fn=None) -> torch.Tensor:
    return torch.nn.utils.clip_grad_norm_(list(parameters), most or float("inf"))


def mark(weights: Path) -> float:
    """One number of the trained weights: far from 0, and moved by a change of any of them."""
    tensors = load_file(weights)
    x = np.concatenate([tensors[name].astype(np.float64).ravel() for name in sorted(tensors)])
    return 10 * float(np.linalg.norm(x)) + float(x @ np.cos(np.arange(len(x))))


def predictions(folder: Path) -> list[dict]:
    """The records of a cell's only evaluation."""
    (path,) = folder.glob("evaluations/*/predictions.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def measure(overrides: list[str], folder: Path) -> dict:
    """Recipe and scores of a cell, trained and scored in `folder`."""
    small_vqa2 = folder / "vqa2"
    if any("{vqa2}" in o for o in overrides):
        runpy.run_path(str(Path(__file__).parent / "small_vqa2.py"))["write_vqa2"](small_vqa2)
    given = [o.replace("{vqa2}", str(small_vqa2)) for o in overrides] + ["runtime.device=cpu", "seed=3"]
    with composer() as compose:
        config = compose(given)
    cell, store = cells.prepare(cells.Cell(config, module_of(config)), NullProgress()), Store(folder / "outputs")
    outcome = cells.run(cell, store)
    assert outcome.state == "done", outcome.error
    family = importlib.import_module(module_of(config))
    found = cell.results(store)
    scores = {k: v for k, v in found.metrics.items() if not k.endswith(UNSTABLE)}
    if module_of(config).endswith("seq2seq"):  # of the search: each of float32, stored to four places
        scores["search"] = round(sum(record["score"] for record in predictions(found.folder)), 2)
    scores["weights"] = mark(found.folder / "weights.safetensors")
    named = as_named(config, family)
    asked = {k: v for k, v in named.items() if k not in ("paths", "runtime", "launcher", "logger")} | {
        "data": {k: v for k, v in config["data"].items() if k != "path"},
        "task": {k: v for k, v in named["task"].items() if k != "deviations"},
    }
    stamp = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    return {"config": stamp, "family": module_of(config), "recipe": list(recipes(config, family)), "scores": scores}


def differences(recorded: dict, now: dict) -> list[str]:
    names = sorted(set(recorded["scores"]) ^ set(now["scores"]))
    found = [f"{name} is measured {'now' if name in now['scores'] else 'no longer'}" for name in names]
    for name in sorted(set(recorded["scores"]) & set(now["scores"])):
        before, after = recorded["scores"][name], now["scores"][name]
        if not abs(before - after) <= TOLERANCE * abs(before) + 1e-9:
            found.append(f"{name}: {before:.9g} recorded, {after:.9g} now")
    return found


@pytest.mark.parametrize("name", CELLS)
def test_golden_cell(name, tmp_path):
    path = FOLDER / f"{name}.json"
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    now = measure(CELLS[name], tmp_path)
    changed = differences(recorded, now) if recorded else []
    part = now["family"].replace(".", "/") + ".py"
    if changed and (now["recipe"], now["config"]) == (recorded["recipe"], recorded["config"]):
        pytest.fail(
            f"{name}: {'; '.join(changed)}. What a cell computes has changed: raise RECIPE in {part} (training, evaluation), then run `make golden`"
        )
    if os.environ.get("GOLDEN") == "record":
        path.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return
    assert recorded is not None, f"{name} was never recorded: run `make golden`"
    assert now["config"] == recorded["config"], "a setting or a default is another now: run `make golden`"
    assert now["recipe"] == recorded["recipe"], f"the recipe of {part} was raised: run `make golden`"
