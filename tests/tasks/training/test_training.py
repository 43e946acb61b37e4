"""Training: what selects an epoch, what diverges, and that a kill changes nothing (what is learned: test_golden.py)."""

from __future__ import annotations

import copy
import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path

import forked
import pytest
import torch
from sacrebleu.metrics import BLEU

from repro import cell as cells
from repro.options import read
from repro.store import Store
from tasks.cells.seq2seq import load
from tasks.seq2seq.encode import open_encoded
from tasks.seq2seq.options import Decode
from tasks.seq2seq.search import decode
from tasks.training import checkpoints
from tasks.training.trainer import Trainer

TIMINGS = ("seconds", "dev/decode_seconds", "train/seconds", "train/epoch_seconds", "train/tokens_per_second")


@pytest.fixture(scope="session")
def tiny(tiny):
    """With the checkpoints of finished trainings, to compare them."""
    return [*tiny, "runtime.keep_checkpoints=true"]


def scored(cell, entry):
    """The folder of the evaluation on the cell's own test set."""
    return entry.evaluation(cell.evaluation_id(cell.tests[0]))


def scores(cell, entry) -> dict[str, float]:
    found = entry.read()["metrics"] | scored(cell, entry).read()["metrics"]
    return {k: v for k, v in found.items() if k not in TIMINGS}


def curves(entry) -> list[dict[str, str]]:
    rows = csv.DictReader(entry.path("curves.csv").open())
    return [{k: v for k, v in row.items() if k not in TIMINGS} for row in rows]


def weights(entry, which: str = "model") -> dict[str, torch.Tensor]:
    return torch.load(entry.path("checkpoints/last.pt"), weights_only=True)[which]


def assert_same_training(cell, entry, reference) -> None:
    assert scores(cell, entry) == scores(cell, reference)
    assert curves(entry) == curves(reference)
    for which in ("model", "best"):
        mine, theirs = weights(entry, which), weights(reference, which)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[k], theirs[k]) for k in mine), which
    mine, theirs = (scored(cell, e).predictions() for e in (entry, reference))
    assert [p["output"] for p in mine] == [p["output"] for p in theirs]
    assert entry.path("weights.safetensors").read_bytes() == reference.path("weights.safetensors").read_bytes()


@pytest.mark.slow
def test_a_sparse_output_layer_learns_and_says_what_its_loss_is(learned):
    cell, entry = learned("softmax", "model.output=entmax15", "train.max_epochs=12", "optim.lr=0.02")
    rows, found = curves(entry), entry.read()
    assert float(rows[-1]["train/loss"]) < float(rows[0]["train/loss"]) - 0.5 and "dev/ppl" not in found["metrics"]
    assert found["metrics"]["dev/accuracy"] > float(rows[0]["dev/accuracy"]) + 10
    assert found["signatures"]["dev/loss"].startswith("entmax15 loss in nats")
    assert all(math.isfinite(one["score"]) for one in scored(cell, entry).predictions())


@pytest.mark.slow
def test_with_an_average_the_mean_of_the_last_epochs_is_kept_and_measured(
    uninterrupted, prepared_cell, ran, monkeypatch, tiny, tmp_path
):
    """The training itself goes on as without."""
    (_, reference), seen, save = uninterrupted(), [], checkpoints.save
    keep = lambda state, folder: (seen.append(copy.deepcopy(state)), save(state, folder))  # noqa: E731
    monkeypatch.setattr(checkpoints, "save", keep)
    cell = prepared_cell([*tiny, *INTERRUPTED, "train.average=3"])
    entry = ran(cell, Store(tmp_path))
    for name, last in weights(reference).items():
        assert torch.equal(seen[-1]["model"][name], last)
        mean = torch.stack([state["model"][name] for state in seen[1:]]).mean(0)
        torch.testing.assert_close(seen[-1]["best"][name], mean, atol=1e-6, rtol=1e-5)
    mine, plain = curves(entry), curves(reference)
    assert mine[:2] == plain[:2] and all(a["dev/loss"] != b["dev/loss"] for a, b in zip(mine[2:], plain[2:]))
    metrics, (model, _) = entry.read()["metrics"], load(cell.config, entry.folder)
    assert metrics["best_epoch"] == 4 and metrics["dev/loss"] == pytest.approx(float(mine[-1]["dev/loss"]))
    assert torch.equal(model.generator.weight, seen[-1]["best"]["net.generator.weight"])


def test_bleu_that_selects_is_that_of_greedy_outputs_and_says_so(learned):
    """Whatever decode.* is, which may change after the training."""
    cell, entry = learned("softmax", "train.best_metric=bleu")
    (model, _), data = load(cell.config, entry.folder), open_encoded(cell.prepared.folder)
    pairs, longest = data.splits["dev"].pairs, max(data.splits["dev"].target.lengths)
    options = read(Decode, {"beam": 1, "max_len_a": 0.0, "max_len_b": int(longest), "replace_unk": True}, "decode")
    outputs = [" ".join(best.tokens) for (best,) in decode(model, data, options, split="dev")]
    expected = BLEU().corpus_score(outputs, [[pair.references[0] for pair in pairs]]).score
    assert entry.read()["metrics"]["dev/bleu"] == pytest.approx(expected, abs=1e-4) and 0 < expected < 99
    assert re.fullmatch(r"nrefs:1\|.*\|greedy search, .*", entry.read()["signatures"]["dev/bleu"])
    notes = cell.prepared.facts["notes"]
    assert any("dev bleu (greedy search" in note and "the 60 dev pairs" in note for note in notes)


INTERRUPTED = ["train.max_epochs=4", "data.limits={train: 64, dev: 16, test: 8}", "train.batch_size=4"]
RUN = """
import json, os, signal, sys
from repro import cell as cells
from repro.store import Store
from tasks.config.compose import composer, module_of
from tasks.data import NullProgress
if __name__ == "__main__":
    overrides, out, place, at = json.loads(sys.argv[1]), *sys.argv[2:]
    if at:
        from tasks.training import loop, trainer
        update, dev = (trainer.Trainer, "train_step", "updates"), (loop.Training, "_measure", "epoch")
        owner, name, count = update if place == "update" else dev
        real = getattr(owner, name)
        def dying(self, *args):
            if getattr(self, count) == int(at):
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *args)
        setattr(owner, name, dying)
    with composer() as compose:
        config = compose(overrides)
    outcome = cells.run(cells.prepare(cells.Cell(config, module_of(config)), NullProgress()), Store(out))
    print(outcome.state)
    sys.exit(outcome.error)
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("process")
    (folder / "run.py").write_text(RUN)

    def run(overrides, out: Path, place: str = "", at: int | str = "") -> subprocess.CompletedProcess:
        arguments = [json.dumps(overrides), str(out), place, str(at)]
        return forked.run(folder / "run.py", arguments, os.environ, folder, timeout=500)

    return run


MAPPINGS = ["mapping=entmax", "mapping.alpha=learned", "+mapping.at.cross={name: fusedmax}"]
FERTILITY = ["model.name=lstm_fertility", "+model.fertility=guided", "+model.coverage=true"]
SCHEDULES = {
    "adam": [],
    "sgd": ["optim=sgd", "schedule=latched_halving", "schedule.start_decay_at=2", "optim.lr=1.0", "train.average=3"],
    "transformer": ["model=transformer_small", "model.heads=2", "encode.joint=true", *MAPPINGS],
    "selected": ["train.best_metric=chrf"],
    "fertility": ["mapping=fertility_sparsemax", *FERTILITY],
}


def asked(*overrides: str) -> list[str]:
    """Overrides without those of the LSTM alone, where they choose another model."""
    other = any(o.startswith("model=transformer") for o in overrides)
    return [o for o in overrides if not (other and o.startswith("model.embed_dim="))]


@pytest.fixture(scope="module")
def uninterrupted(prepared_cell, ran, tiny, tmp_path_factory):
    """`uninterrupted(more overrides)`: (cell, entry) of four epochs of 16 updates without interruption, once for each."""

    @cache
    def run(*more: str):
        cell = prepared_cell(asked(*tiny, *INTERRUPTED, *more))
        return cell, ran(cell, Store(tmp_path_factory.mktemp("uninterrupted")))

    return run


@pytest.fixture(scope="module")
def killed(process, tiny, tmp_path_factory):
    """`killed(folder, schedule, minutes)`: there, a training after kill -9 at update 40 of 64, in epoch 3 of 4."""
    stores = {}

    def killed(folder: Path, schedule: str = "adam", minutes: float = 10) -> list[str]:
        overrides = asked(*tiny, *INTERRUPTED, *SCHEDULES[schedule], f"runtime.save_minutes={minutes}")
        if (schedule, minutes) not in stores:
            stores[schedule, minutes] = tmp_path_factory.mktemp("killed")
            first = process(overrides, stores[schedule, minutes], "update", 40)
            assert first.returncode == -signal.SIGKILL, first.stderr
        shutil.copytree(stores[schedule, minutes], folder, dirs_exist_ok=True)
        return overrides

    return killed


# The schedule's and the model's state travel with the epochs; adam covers the middle.
KILLED = [("adam", 1e-9, 40), *(pytest.param(schedule, 10, 32, marks=pytest.mark.slow) for schedule in SCHEDULES)]


@pytest.mark.parametrize("schedule, minutes, update", KILLED)
def test_killed_within_an_epoch_ends_the_same(uninterrupted, killed, process, tmp_path, schedule, minutes, update):
    """The same command again goes on from the last epoch, or from the middle of the epoch if checkpoints are timed."""
    cell, reference = uninterrupted(*SCHEDULES[schedule])
    overrides = killed(tmp_path, schedule, minutes)
    entry = next(iter(Store(tmp_path)))
    assert entry.state() == "lost" and entry.read() is None
    assert len(curves(entry)) == 2
    (entry.path("checkpoints") / "saving.99999.pt").write_bytes(b"left by a writer that was killed")
    second = process(overrides, tmp_path)
    assert second.returncode == 0 and second.stdout.strip() == "done", second.stderr
    assert f"resuming from epoch 3, update {update}" in entry.path("log.txt").read_text()
    assert_same_training(cell, entry, reference)
    assert not list(entry.path("checkpoints").glob("saving.*")), "checkpoints of dead writers fill the disk"


@pytest.mark.parametrize("update, resumed", [(40, "epoch 3, update 41"), (47, "epoch 4, update 48")])
def test_asked_to_stop_it_ends_the_same(uninterrupted, prepared_cell, tiny, tmp_path, monkeypatch, update, resumed):
    """In the middle of epoch 3, and at its last update: dev is measured before, or the epoch's row would be missing."""
    cell, reference = uninterrupted()
    store, step = Store(tmp_path), Trainer.train_step

    def warned(self, *args, **kwargs):
        if self.updates == update:
            os.kill(os.getpid(), signal.SIGUSR1)
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", warned)
        outcome = cells.run(cell, store)
    assert outcome.state == "failed" and outcome.machine and "SIGUSR1" in outcome.error
    entry = cell.entry(store)
    assert entry.state() == "lost" and not entry.busy()
    assert cells.run(cell, store).state == "done"
    assert f"resuming from {resumed}" in entry.path("log.txt").read_text()
    assert_same_training(cell, entry, reference)


@pytest.mark.slow
def test_a_timed_checkpoint_does_not_pass_over_the_epochs_end(uninterrupted, process, tiny, tmp_path):
    """kill -9 while dev is measured at the end of epoch 3."""
    cell, reference = uninterrupted()
    overrides = [*tiny, *INTERRUPTED, "runtime.save_minutes=1e-9"]
    assert process(overrides, tmp_path, "dev", 3).returncode == -signal.SIGKILL
    assert process(overrides, tmp_path).returncode == 0
    assert_same_training(cell, next(iter(Store(tmp_path))), reference)


def test_it_goes_on_from_the_checkpoint_that_can_be_read(uninterrupted, killed, ran, tmp_path):
    cell, reference = uninterrupted()
    killed(tmp_path)
    entry = cell.entry(Store(tmp_path))
    path = entry.path("checkpoints/last.pt")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    ran(cell, Store(tmp_path))
    log = entry.path("log.txt").read_text()
    assert "last.pt cannot be read" in log and entry.path("checkpoints/last.unreadable").exists()
    assert "resuming from epoch 2, update 16" in log
    assert_same_training(cell, entry, reference)


def test_the_disk_fills_up_while_a_checkpoint_is_written(prepared_cell, tiny, tmp_path, monkeypatch):
    """A clear error, no half checkpoint in the place of a whole one, and the next run goes on."""
    cell, store = prepared_cell([*tiny, "train.max_epochs=3"]), Store(tmp_path)
    entry, real, calls = cell.entry(store), torch.save, []

    def full(state, file):
        calls.append(file)
        if len(calls) == 2:  # from here on, the file is on a full disk
            file.write(b"half")
            with open("/dev/full", "wb") as nowhere:
                os.dup2(nowhere.fileno(), file.fileno())
        real(state, file)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        outcome = cells.run(cell, store)
    assert outcome.state == "failed" and "the disk is full: no space left" in outcome.error.splitlines()[0]
    assert sorted(p.name for p in entry.path("checkpoints").iterdir()) == ["last.pt"]
    weights(entry)
    assert cells.run(cell, store).state == "done"
    assert "resuming from epoch 2" in entry.path("log.txt").read_text()


@pytest.mark.parametrize("clip, lr, epochs", [(0, 3e38, 1), (5, 3e38, 1), (0, 1e6, 3)])
def test_divergence_is_named(prepared_cell, tiny, tmp_path, clip, lr, epochs):
    """Also a loss that is finite all the way, and worth nothing."""
    how = ["optim=sgd", "schedule=fixed", f"optim.clip={clip}", f"train.max_epochs={epochs}"]
    cell = prepared_cell([*tiny, *how, *(["model.init_range=10"] if lr > 1e6 else [])])
    cell.config["optim"]["lr"] = lr
    outcome = cells.run(cell, Store(tmp_path))
    assert outcome.state == "failed" and not cell.entry(Store(tmp_path)).finished()
    said = outcome.error.splitlines()[0]
    assert re.match(r"FloatingPointError: epoch 1, update \d.*; last good values: ", said), said
    assert lr == 1e6 or "lower optim.lr (it was 3e+38) or set optim.clip (it was " in said
