"""Training on a GPU: every model runs our kernels, no step makes the host wait, and losses follow those of the CPU."""

import csv

import pytest
from syncs import syncs

from sparse_attention import kernels

pytestmark = pytest.mark.gpu
SMALL = ("train.max_epochs=2", "train.batch_size=8", "model.hidden_dim=16")
TEXTS = (*SMALL, "data.limits={train: 48, dev: 12, test: 12}")
WORDS = (*TEXTS, "model.embed_dim=16")
PICTURES = (*SMALL, "data.input=pixels", "data.dev_share=0.2", "encode.min_answer_count=1", "model.ff_dim=16")
CELLS = {
    "LSTM": ("task=toy", *WORDS, "model.input_feeding=true", "mapping=fusedmax"),  # by tasks.layers.steps
    "transformer": (
        "task=toy",
        *TEXTS,
        "model=transformer_small",
        "model.ff_dim=16",
        "model.heads=2",
        "encode.joint=true",
        "mapping=entmax",
    ),
    "IMDB": ("task=imdb", "data=toy_reviews", *WORDS, "mapping=continuous_sparsemax", "model.discrete=softmax"),
    "SNLI": ("task=snli", "data=toy_entailment", *WORDS, "mapping=oscarmax"),
    "VQA": ("task=vqa", "data=vqa2", *PICTURES, "mapping=sparsehourglass"),
}
COUNTED = (3, 4)  # updates in which waits are counted; the first ones allocate and compile


@pytest.mark.parametrize("name", CELLS)
def test_training_follows_that_on_the_cpu(name, device, launched, tmp_path, monkeypatch, request) -> None:
    pytest.importorskip("fairseq")
    from small_vqa2 import write_vqa2

    from repro import cell as cells
    from repro.store import Store
    from tasks.training.trainer import Trainer

    prepared_cell = request.getfixturevalue("prepared_cell")  # imports what a machine without fairseq lacks
    step, made, waits = Trainer.train_step, [], []

    def counted(self, samples):
        made.append(samples)
        if len(made) not in COUNTED:
            return step(self, samples)
        host = [s["net_input"]["src_lengths"] for s in samples if "src_lengths" in s["net_input"]]
        waits.extend(syncs(lambda: step(self, samples), self.device, host))

    def losses(where: str, precision: str = "fp32") -> list[float]:
        """Dev and train losses, epoch by epoch."""
        path = [f"data.path={tmp_path}"] if name == "VQA" else []
        cell = prepared_cell([*CELLS[name], f"runtime.device={where}", f"train.precision={precision}", *path])
        store = Store(tmp_path / f"{kernels.active()}-{precision}")
        made.clear()
        outcome = cells.run(cell, store)
        assert outcome.state == "done", outcome.error
        with (cell.entry(store).folder / "curves.csv").open(encoding="utf-8") as file:
            return [
                float(row[k]) for row in csv.DictReader(file) for k in sorted(row) if k.endswith("/loss") and row[k]
            ]

    if name == "VQA":
        write_vqa2(tmp_path)
    monkeypatch.setattr(Trainer, "train_step", counted)
    with kernels.use("reference"):
        expected = losses("cpu")
    assert not launched
    with kernels.use("auto"):  # without a GPU, the native kernels: Triton's interpreter would take minutes
        assert losses(device) == pytest.approx(expected, rel=0.02)  # training amplifies sums in another order
        assert bool(launched) == (device == "cuda") and len(made) > max(COUNTED)
        assert losses(device, "bf16") == pytest.approx(expected, rel=0.1)
    assert waits == []
