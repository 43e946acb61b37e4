"""The step of training: it waits for no GPU, and mixed precision keeps its weights in float32."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from syncs import syncs
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

from repro import cell as cells
from repro.store import Store
from tasks.fairseq_plugin.classification import Classes, groups
from tasks.layers import lstm
from tasks.seq2seq.encode import open_encoded
from tasks.seq2seq.models import lstm as lstm_model
from tasks.training.trainer import Trainer

SMALL = ["data.limits={train: 40, dev: 12, test: 12}", "train.max_epochs=1", "train.batch_size=8"]
LSTM = ["task=toy", *SMALL, "model.embed_dim=12", "model.hidden_dim=12"]
WIDTHS = ["model.hidden_dim=12", "model.ff_dim=12", "model.heads=2"]
TAGGER = ["model.tagger_dim=8", "model.tagger_epochs=1"]
CELLS = {
    "lstm": [*LSTM, "train.update_freq=2"],
    "additive": [*LSTM, "model=lstm_opennmt", "model.attention=additive", "optim=sgd"],
    "fertility": [*LSTM, "model=lstm_fertility", "mapping=fertility_softmax", "model.fertility=predicted", *TAGGER],
    "transformer": ["task=toy", *SMALL, "model=transformer_small", *WIDTHS, "encode.joint=true"],
    "snli": ["task=snli", "data=toy_entailment", *SMALL, "model.embed_dim=8", "model.hidden_dim=8"],
}


@pytest.mark.parametrize("given", [{}, {"class_weights": "balanced"}])
def test_balanced_classes_count_the_same_in_training_alone(given):
    """Of 4 training examples, 3 are of class 0: its weight is 4 / (3 * 3), that of class 1 is 4 / (3 * 1), that of class 2 is not used."""
    texts, logits = torch.tensor([[5], [5], [5], [5]]), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 0, 0, 1])
    encoded = SimpleNamespace(splits={"train": SimpleNamespace(labels=labels.numpy())}, classes=["a", "b", "c"])
    attention = {"attention": {"words": torch.ones(4, 1)}}
    model = torch.nn.Module()
    model.forward = lambda texts, lengths: (logits, attention)
    sample = {"net_input": {"texts": [texts], "lengths": [torch.ones(4)]}, "target": labels}
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    weights = torch.tensor([4 / 9, 4 / 9, 4 / 9, 4 / 3]) if given else torch.ones(4)
    criterion = Classes(SimpleNamespace(encoded=encoded, target_dictionary=None), **given)
    assert criterion.summed(model.train(), sample)[0] == pytest.approx((weights * each).sum().item())
    assert criterion.summed(model.eval(), sample)[0] == pytest.approx(each.sum().item())
    assert groups({"train": given})["criterion"]["class_weights"] == given.get("class_weights", "")


@pytest.mark.parametrize("name", ["lstm", "additive", "snli"])
def test_an_epoch_gives_the_weights_of_fairseqs_trainer_to_the_bit(prepared_cell, name, tmp_path):
    """Its batches and updates: Adam over two batches an update, SGD, a criterion of examples."""
    from fairseq.data.iterators import GroupedIterator
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.trainer import Trainer

    from tasks.fairseq_plugin.parts import Parts
    from tasks.training.job import Job
    from tasks.training.loop import Training

    cell = prepared_cell([*CELLS[name], "optim.clip=0.5", "optim.weight_decay=0.01"])
    config = cell.config
    config["optim"] |= {"betas": [0.8, 0.95], "eps": 1e-3} if config["optim"]["name"] == "adam" else {}
    parts = Parts(config["task"]["family"], config, Path(cell.prepared.folder))
    ours, optim, rate = Training(Job(parts, tmp_path, 1), None), config["optim"], [config["optim"]["lr"]]
    adam = {"adam_betas": str(tuple(optim.get("betas", ()))), "adam_eps": optim.get("eps")}
    asked = {
        "common": {"cpu": True, "seed": config["seed"]},
        "dataset": {"batch_size": 8, "required_batch_size_multiple": 1, "num_workers": 0},
        "optimization": {"clip_norm": 0.5, "lr": rate},
        "optimizer": {"_name": optim["name"], "lr": rate, "weight_decay": optim["weight_decay"]}
        | ({"momentum": 0.0} if optim["name"] == "sgd" else adam),
        "lr_scheduler": {"_name": "fixed", "lr": rate, "force_anneal": None, "lr_shrink": 1.0, "warmup_updates": 0},
    }
    given = OmegaConf.merge(OmegaConf.structured(FairseqConfig), parts.groups, asked)
    torch.manual_seed(config["seed"])
    model = parts.model()
    theirs = Trainer(OmegaConf.create(OmegaConf.to_container(given)), parts.task, model, parts.criterion())
    start = {key: value.clone() for key, value in model.state_dict().items()}
    for samples in GroupedIterator(theirs.get_train_iterator(epoch=1).next_epoch_itr(), ours.train.every):
        theirs.train_step(samples)
    ours.trainer.schedule.rate = lambda update: rate[0]
    for samples in ours.train.updates():
        ours.trainer.train_step(samples)
    assert ours.trainer.updates == theirs.get_num_updates() == len(ours.train) >= 3
    assert not all(torch.equal(value, start[key]) for key, value in model.state_dict().items())
    for key, value in ours.trainer.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key


@pytest.mark.parametrize("name", CELLS)
def test_no_step_waits_and_what_is_logged_is_read_at_once(prepared_cell, ran, name, tmp_path, monkeypatch):
    step, valid, read = Trainer.train_step, Trainer.valid_step, Trainer.read
    found, reads = [], []

    def counted(of):
        def work(self, samples, *rest):
            group = samples if isinstance(samples, list) else [samples]
            lengths = [s["net_input"]["src_lengths"] for s in group if "src_lengths" in s["net_input"]]
            found.append(syncs(lambda: of(self, samples, *rest), self.device, lengths))

        return work

    def counting(self):
        pending, told = len(self.pending), []
        reads.append((pending, syncs(lambda: told.extend(read(self)), self.device)))
        return told

    monkeypatch.setattr(Trainer, "train_step", counted(step))
    monkeypatch.setattr(Trainer, "valid_step", counted(valid))
    monkeypatch.setattr(Trainer, "read", counting)
    ran(prepared_cell(CELLS[name]), Store(tmp_path))
    assert len(found) >= 4 and found == [[]] * len(found)
    assert all(len(waits) == 1 for pending, waits in reads if pending) and max(n for n, _ in reads) > 1


def lstm_of_cudnn(self, x, states=None):
    """Its result without values: in float16 under autocast, whatever autocast's type."""
    both = 1 + self.bidirectional
    given = {"dtype": torch.float16 if torch.is_autocast_enabled("cuda") else x.dtype}
    h, c = (x.new_empty(both * self.num_layers, len(x), self.hidden_size, **given) for _ in range(2))
    return x.new_empty(*x.shape[:2], both * self.hidden_size, **given), (h, c)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_a_loss_on_a_gpu_mixes_no_devices_and_reads_no_values(prepared_cell, name, half, tmp_path, monkeypatch):
    """Fake tensors have the device and the type of a GPU's, and no values. The rows of mappings are not looked into."""
    from tasks.fairseq_plugin.parts import Parts
    from tasks.training.job import Batches, Job

    cell = prepared_cell([*CELLS[name], *["model.fertility=constant"] * (name == "fertility")])
    parts = Parts(cell.config["task"]["family"], cell.config, Path(cell.prepared.folder))
    sample = next(Batches(Job(parts, tmp_path, 1), "train", 0, 1).updates())[0]
    model, criterion = parts.model(), parts.criterion()
    monkeypatch.setattr(lstm.Lstm, "forward", lstm_of_cudnn)
    monkeypatch.setattr(lstm_model, "packed", lambda encoder, x, lengths: encoder(x))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = {}  # parameters by their own, since modules share some
        for part in (*model.modules(), *criterion.modules()):
            for held, kind in ((part._parameters, torch.nn.Parameter), (part._buffers, lambda x: x)):
                for key, x in held.items():
                    if x is not None:
                        held[key] = made.setdefault(id(x), kind(mode.from_tensor(x.detach()).to("cuda")))
        lengths = sample["net_input"].get("src_lengths")
        sample = tree_map_only(torch.Tensor, lambda x: mode.from_tensor(x).to("cuda"), sample)
        if lengths is not None:
            sample["net_input"]["src_lengths"] = mode.from_tensor(lengths)
        torch.set_autocast_enabled("cuda", half)  # torch.autocast itself looks for a GPU
        try:
            loss, _, log = criterion(model.train(), sample)
        finally:
            torch.set_autocast_enabled("cuda", False)
    assert loss.is_cuda and loss.dtype == torch.float32
    assert all(x.is_cuda for x in log.values() if isinstance(x, torch.Tensor))


def test_the_weights_of_classes_are_moved_to_the_device_once(prepared_cell, ran, tmp_path, monkeypatch):
    moved = []
    monkeypatch.setattr(Classes, "to", lambda self, device: moved.append(device) or self)
    ran(prepared_cell([*CELLS["snli"], "train.class_weights=balanced"]), Store(tmp_path))
    assert moved == [torch.device("cpu")]


def test_weights_and_gradients_stay_in_float32_and_the_matrix_products_do_not(
    prepared_cell, ran, tmp_path, monkeypatch
):
    step, seen = Trainer.train_step, []

    def watched(self, samples):
        kept = self.model.net.generator.register_forward_hook(lambda m, i, out: seen.append(out.dtype))
        step(self, samples)
        kept.remove()
        for parameter in self.model.parameters():
            assert parameter.dtype == torch.float32 == parameter.grad.dtype

    monkeypatch.setattr(Trainer, "train_step", watched)
    for precision in ("bf16", "fp16"):
        cell = prepared_cell([*CELLS["lstm"], "train.precision=bf16", "optim.lr=0.003", "train.max_epochs=3"])
        cell.config["train"]["precision"] = precision  # fp16 on a CPU is refused by a composition, for its time alone
        entry = ran(cell, Store(tmp_path / precision))
        assert {torch.bfloat16 if precision == "bf16" else torch.float16} == set(seen)
        assert math.isfinite(entry.read()["metrics"]["train/loss"])
        seen.clear()


@pytest.mark.parametrize("optim", ["adam", "sgd"])
def test_an_overflow_in_fp16_changes_no_weight_and_lowers_the_scale(prepared_cell, ran, optim, tmp_path, monkeypatch):
    """With torch's fused optimisers, which are also those of a GPU; else they do as fairseq's."""
    step, made = Trainer.train_step, []

    def overflowing(self, samples):
        before = [p.detach().clone() for p in self.model.parameters()]
        if not made:
            self.scaler._init_scale = 1e30
        step(self, samples)
        same = [torch.equal(a, b) for a, b in zip(before, self.model.parameters())]
        made.append((all(same), self.scaler.get_scale()))

    cell = prepared_cell([*CELLS["lstm"], f"optim={optim}", "optim.lr=0.01"])
    plain = ran(cell, Store(tmp_path / "plain")).read()["metrics"]
    cell.config["train"]["precision"] = "fp16"
    scaled = ran(cell, Store(tmp_path / "scaled")).read()["metrics"]
    assert scaled["train/loss"] == pytest.approx(plain["train/loss"], rel=2e-3)
    monkeypatch.setattr(Trainer, "train_step", overflowing)
    ran(cell, Store(tmp_path / "overflow"))
    assert made[0][0] and made[0][1] == pytest.approx(5e29) and made[1][1] < made[0][1]


def test_batches_by_tokens_alone_hold_texts_of_like_length(prepared_cell, ran, tmp_path, monkeypatch):
    step, shapes = Trainer.train_step, []

    def watched(self, samples):
        shapes.extend(s["target"].shape for s in samples)
        step(self, samples)

    monkeypatch.setattr(Trainer, "train_step", watched)
    more = ["train.batch_size=null", "train.max_tokens=120", "data.limits.train=100"]
    ran(prepared_cell([*CELLS["lstm"], *more]), Store(tmp_path))
    assert sum(rows for rows, _ in shapes) == 100 and all(rows * columns <= 120 + rows for rows, columns in shapes)
    assert max(rows for rows, _ in shapes) > 2 * min(rows for rows, _ in shapes), "short texts come in larger batches"


def test_tf32_is_recorded_and_names_no_cell(prepared_cell, ran, tmp_path):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        entries = {}
        for wanted in (True, False):
            cell = prepared_cell([*CELLS["lstm"], f"runtime.tf32={str(wanted).lower()}"])
            entries[wanted] = ran(cell, Store(tmp_path / str(wanted)))
            assert torch.backends.cuda.matmul.allow_tf32 == wanted == torch.backends.cudnn.allow_tf32
            assert json.loads(entries[wanted].path("provenance.json").read_text())["machine"]["tf32"] == wanted
        assert entries[True].folder.name == entries[False].folder.name
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_an_example_longer_than_a_batch_is_refused_before_training(prepared_cell, tiny, tmp_path):
    """fairseq would leave it out without a word, and of all examples say that the data are empty."""

    def run(most: int):
        cell = prepared_cell([*tiny, f"train.max_tokens={most}", "train.batch_size=null"])
        return cells.run(cell, Store(tmp_path))

    told = r"max_tokens=1 is too small: example (\d+) of train.* has (\d+) tokens; .* at least (\d+)"
    said = re.search(told, run(1).reason)
    split = open_encoded(prepared_cell(tiny).prepared.folder).splits["train"]
    lengths = [max(len(split.source[i]), len(split.target[i]) + 1) for i in range(len(split))]
    assert said and said[2] == said[3] == str(max(lengths)) and int(said[1]) == lengths.index(max(lengths)) + 1
    assert run(int(said[2]) - 1).state == "failed" and not [*tmp_path.rglob("*.pt")]
    assert run(int(said[2])).state == "done"
