"""Through fairseq: batches, criterion, schedule, a cell from configuration to metrics, resuming, figures."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch

from sparse_attention.repro import cell as cells
from sparse_attention.repro.store import Store
from tasks import fairseq_plugin  # noqa: F401  (registers everything)
from tasks.data.errors import DataUnavailable
from tasks.fairseq_plugin import vqa_criterion, vqa_model, vqa_task
from tasks.vqa.encode import encode

TINY = (
    "task=vqa", "model=mcan_small", "optim=adam", "profile=demo", "train.max_epochs=2", "train.batch_size=16", "model.hidden_dim=16",
    "model.heads=2", "model.ff_dim=16", "model.embed_dim=8", "model.flat_mlp_dim=8", "model.flat_out_dim=16", "model.cnn_channels=[8,8]",
    "model.cnn_strides=[4,2]", "model.basis_side=4", "model.basis_variance=0.02", "task.data.name=vqa2", "task.data.image_size=[32,32]",
    "task.data.dev_share=0.2", "task.encode.min_answer_count=2", "task.decode.keep_attention=6", "runtime.device=cpu",
)  # fmt: skip


@pytest.fixture
def task(encoded):
    return vqa_task.VisualQuestionsTask.setup_task(
        vqa_task.VisualQuestionsConfig(encoded=vqa_task.offer(encoded), by_image=True)
    )


def test_a_batch_holds_each_image_once(task, encoded):
    task.load_dataset("train")
    data, part = task.datasets["train"], encoded.parts["train"]
    picked = [0, 5, 0, 9]
    sample = data.collater(picked)
    inputs = sample["net_input"]
    assert len(inputs["images"]) == 3 and inputs["images"].dtype == torch.uint8
    for row, i in enumerate(picked):
        assert torch.equal(
            inputs["images"][inputs["image_of"][row]], torch.from_numpy(encoded.images.array[part.image[i]])
        )
        words = [encoded.words[t] for t in inputs["tokens"][row] if t]
        assert words == part.questions[i].text.lower().replace("?", "").split()
        assert sample["target"][row].count_nonzero() == len(part.answers[i])
    assert data.collater([]) == {}


def test_an_unreadable_image_is_black(task, encoded):
    encoded.parts["test"].image[3] = -1
    task.load_dataset("test")
    inputs = task.datasets["test"].collater([2, 3])["net_input"]
    assert not inputs["images"][inputs["image_of"][1]].any() and inputs["images"][inputs["image_of"][0]].any()


def test_order_is_new_each_epoch_the_same_when_resumed_and_keeps_images_together(task, encoded):
    task.load_dataset("train")
    data = task.datasets["train"]
    data.part.image[:] = np.arange(len(data)) // 3
    orders = []
    for epoch in (1, 2, 1):
        data.set_epoch(epoch)
        orders.append(np.array([data[place] for place in data.ordered_indices()]))
    assert np.array_equal(orders[0], orders[2]) and not np.array_equal(orders[0], orders[1])
    assert np.array_equal(np.sort(orders[1]), np.arange(len(data)))
    runs = 1 + np.count_nonzero(np.diff(data.part.image[orders[0]]))
    assert runs == len(np.unique(data.part.image))


def test_the_loss_is_binary_cross_entropy_summed_over_answers(task, encoded):
    class Fixed(torch.nn.Module):
        def forward(self, **_):
            return logits, vqa_task.Reduced(torch.zeros(1), torch.tensor([[0.0, 1.0]]))

    target = torch.tensor([[0.3, 0.9, 0.0], [1.0, 0.0, 0.0]])
    logits = torch.tensor([[0.1, 2.0, -1.0], [-0.5, 0.3, 0.0]])
    criterion = vqa_criterion.SoftAnswers(vqa_criterion.SoftAnswersConfig(), task)
    loss, size, log = criterion(Fixed(), {"net_input": {}, "target": target, "ntokens": 4})
    p = torch.sigmoid(logits)
    by_hand = -(target * p.log() + (1 - target) * (1 - p).log()).sum()
    assert size == 2 and loss.item() == pytest.approx(by_hand.item(), rel=1e-5)
    assert log["right"].item() == pytest.approx(0.9)  # .9 for the first, 0 for the second


def test_the_schedule_of_the_authors():
    class Optimizer:
        def set_lr(self, lr):
            self.lr = lr

        def get_lr(self):
            return self.lr

    schedule = vqa_criterion.McanSteps.__new__(vqa_criterion.McanSteps)
    schedule.cfg = vqa_criterion.McanStepsConfig(lr=[1e-4])
    schedule.optimizer = Optimizer()
    rates = [schedule.step_begin_epoch(e) for e in range(1, 14)]
    expected = [0.25, 0.5, 0.75] + [1.0] * 7 + [0.2] * 2 + [0.04]
    assert rates == pytest.approx([1e-4 * r for r in expected])


def test_unknown_model_options_are_named():
    with pytest.raises(ValueError, match=r"model\.layer is unknown"):
        vqa_model.options_of(json.dumps({"layer": 3}))


@pytest.fixture(scope="module")
def cell_of(prepared_cell, vqa2_folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    return lambda *more: prepared_cell([*TINY, f"task.data.path={vqa2_folder}", f"paths.data={root}", *more])


@pytest.fixture(scope="module")
def trained(cell_of, tmp_path_factory):
    """`trained(reduction)`: (cell, entry), each trained once."""
    store, done = Store(tmp_path_factory.mktemp("outputs")), {}

    def trained(reduction: str):
        if reduction not in done:
            cell = cell_of(f"model.reduction={reduction}")
            outcome = cells.run(cell, store)
            assert outcome.state == "done", outcome.error
            done[reduction] = cell, cell.entry(store)
        return done[reduction]

    return trained


@pytest.mark.parametrize("reduction", ["discrete", "continuous_softmax", "continuous_sparsemax", "mixture"])
def test_a_cell_from_configuration_to_metrics(trained, reduction):
    _, entry = trained(reduction)
    found = entry.metrics()
    metrics = found["metrics"]
    assert 0 <= metrics["test/accuracy"] <= 100 and metrics["best_epoch"] in (1, 2)
    assert {"test/accuracy_yes_no", "test/accuracy_other", "test/attention_zeros", "train/seconds"} <= set(metrics)
    assert metrics["test/attention_zeros"] == 0 or reduction == "continuous_sparsemax"
    handled = found["data"]["counts"]
    assert sum(n for k, n in handled.items() if "unreadable image" in k) == 2
    records = list(entry.predictions())
    by_hand = 100 * np.mean([r["sentence"]["accuracy"] for r in records])
    assert metrics["test/accuracy"] == pytest.approx(by_hand, abs=0.01) and len(records) == 24
    exported = json.loads(entry.path("vqa_results.json").read_text())
    assert [e["answer"] for e in exported] == [r["output"] for r in records]
    assert exported[0]["question_id"] == 10_000


def test_rows_share_everything_but_the_reduction(trained):
    losses = {
        r: trained(r)[1].metrics()["metrics"]["train/loss"]
        for r in ("discrete", "continuous_softmax", "continuous_sparsemax")
    }
    assert len(set(losses.values())) == 3
    ids = {trained(r)[0].cell_id for r in losses}
    assert len(ids) == 3 and len({trained(r)[0].prepared.sha256 for r in losses}) == 1


def test_the_same_seed_gives_the_same_numbers_and_another_one_others(cell_of, trained, tmp_path):
    _, entry = trained("continuous_sparsemax")
    again = cell_of("model.reduction=continuous_sparsemax")
    other = cell_of("model.reduction=continuous_sparsemax", "seed=2")
    for c in (again, other):
        assert cells.run(c, Store(tmp_path)).state == "done"
    mine, same, different = (
        e.metrics()["metrics"]["train/loss"]
        for e in (entry, again.entry(Store(tmp_path)), other.entry(Store(tmp_path)))
    )
    assert same == mine != different


def test_training_in_bfloat16_learns_too(cell_of, tmp_path):
    cell = cell_of("model.reduction=continuous_softmax", "train.precision=bf16")
    outcome = cells.run(cell, Store(tmp_path))
    assert outcome.state == "done", outcome.error
    assert np.isfinite(cell.entry(Store(tmp_path)).metrics()["metrics"]["train/loss"])


@pytest.mark.slow
def test_two_processes_over_gloo(cell_of, tmp_path):
    """Each process reads its share of the batches; the answers are scored once."""
    rows = {}
    for processes in (1, 2):
        cell, store = cell_of("train.batch_size=8", f"train.processes={processes}"), Store(tmp_path)
        outcome = cells.run(cell, store)
        assert outcome.state == "done", outcome.error
        with open(cell.entry(store).path("curves.csv"), newline="") as stream:
            rows[processes] = list(csv.DictReader(stream))
        assert "test/accuracy" in cell.entry(store).metrics()["metrics"]
    one, two = (float(rows[n][-1]["updates"]) for n in (1, 2))
    assert two == pytest.approx(one / 2, abs=len(rows[2])) and len(rows[1]) == len(rows[2])


def test_an_interrupted_training_continues_to_the_same_end(cell_of, trained, tmp_path):
    """One epoch, then a second in another run of the same folder: the weights of two epochs in one go."""
    from tasks.fairseq_plugin import training
    from tasks.vqa import experiment

    class Silent:
        def updated(self, *_):
            pass

        epoch_done = note = updated

    config = dict(cell_of("model.reduction=continuous_sparsemax").config)
    encoded = experiment.load(config["task"], vqa_silent())

    def run(folder, epochs):
        made = experiment.groups(config | {"train": config["train"] | {"max_epochs": epochs}}, encoded, folder)
        return training.train(training.fairseq_config(made), Silent(), metric="accuracy", maximize=True)

    whole, _ = run(tmp_path / "whole", 2), run(tmp_path / "parts", 1)
    parts = run(tmp_path / "parts", 2)
    assert [r["train/loss"] for r in whole.history] == pytest.approx([r["train/loss"] for r in parts.history], rel=1e-6)


def vqa_silent():
    from tasks.data.progress import NullProgress

    return NullProgress()


def test_a_model_of_another_task_is_refused(composed):
    from tasks.vqa import experiment

    with pytest.raises(ValueError, match="model=mcan_small"):
        experiment.prepare(composed(["task=vqa", "profile=demo"]), vqa_silent())


def test_it_learns_a_colour_from_pixels(encoded):
    """Sixty pictures by heart: the loss falls far below that of the answers' frequencies."""
    task = vqa_task.VisualQuestionsTask.setup_task(vqa_task.VisualQuestionsConfig(encoded=vqa_task.offer(encoded)))
    task.load_dataset("train")
    options = {"layers": 1, "hidden_dim": 32, "heads": 2, "ff_dim": 32, "dropout": 0.0, "embed_dim": 16, "flat_mlp_dim": 16,
               "flat_out_dim": 32, "reduction": "continuous_sparsemax", "basis_side": 4, "basis_variance": 0.02,
               "cnn_channels": [16, 16], "cnn_strides": [4, 2]}  # fmt: skip
    torch.manual_seed(0)
    model = vqa_model.McanModel.build_model(vqa_model.McanConfig(options=json.dumps(options)), task)
    sample = task.datasets["train"].collater(list(range(len(task.datasets["train"]))))
    target = sample["target"]
    rate = target.mean(0).clamp(1e-4, 1 - 1e-4)
    blind = torch.nn.functional.binary_cross_entropy(rate.expand_as(target), target)
    floor = torch.nn.functional.binary_cross_entropy(target.clamp(1e-6, 1 - 1e-6), target)  # soft targets have entropy
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(150):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(**sample["net_input"])[0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (loss - floor).item() < 0.25 * (blind - floor).item()


def test_figures_show_every_row(trained, tmp_path):
    from PIL import Image

    from tasks.vqa import figures

    panels = []
    for reduction in ("discrete", "continuous_softmax", "continuous_sparsemax", "mixture"):
        cell, entry = trained(reduction)
        panels.append(figures.read_panel(reduction, entry, cell.config))
    chosen = figures.choose(panels, 3)
    assert len(set(chosen)) == 3 and len({panels[0].records[i]["image"] for i in chosen}) == 3
    files = figures.draw(panels, chosen, [tmp_path / "a.png", tmp_path / "a.svg"])
    with Image.open(files[0]) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 1000
    assert "<svg" in files[1].read_text()
    (tmp_path / "none").mkdir()
    empty = Store(tmp_path / "none").entry("vqa", "softmax", "0" * 16)
    with pytest.raises(DataUnavailable, match="no stored attention"):
        figures.read_panel("x", empty, panels[0].config)


def test_questions_alone_train_on_real_text(prepared_cell, testdata, tmp_path):
    """The real VQA v2 questions without their images: the most frequent answer is beaten."""
    cell = prepared_cell(
        [*TINY, "task.data.name=vqa2_subset", f"task.data.mirror={testdata}", "task.data.input=none", f"paths.data={tmp_path}",
         "task.data.limits={train: 1200, dev: 200, test: 300}", "task.encode.min_answer_count=5", "train.max_epochs=4",
         "model.layers=1", "optim.warmup_updates=20", "optim.lr=0.01"]
    )  # fmt: skip
    outcome = cells.run(cell, Store(tmp_path / "out"))
    assert outcome.state == "done", outcome.error
    metrics = cell.entry(Store(tmp_path / "out")).metrics()["metrics"]
    assert metrics["test/accuracy"] > cell.prepared.baselines["most frequent answer"]["test/accuracy"]
    assert {"test/accuracy_number"} <= set(metrics)


def test_encoding_identity_follows_options(encoded):
    again = encode(encoded.corpus, encoded.images, {"max_tokens": 14, "min_answer_count": 2, "vectors": None})
    other = encode(encoded.corpus, encoded.images, {"max_tokens": 13, "min_answer_count": 2, "vectors": None})
    assert again.sha256 == encoded.sha256 != other.sha256


@pytest.mark.parametrize("profile", ["demo", "cpu", "paper"])
@pytest.mark.parametrize("model", ["mcan_small", "mcan_large"])
def test_every_shipped_configuration_makes_a_model_and_fairseqs_groups(composed, encoded, tmp_path, profile, model):
    from tasks.fairseq_plugin import training
    from tasks.vqa import experiment
    from tasks.vqa.mcan import ImageSpec, Mcan

    config = composed(
        ["task=vqa", f"model={model}", "optim=adam", f"profile={profile}", "model.reduction=continuous_sparsemax"]
    )
    groups = experiment.groups(config, encoded, tmp_path)
    found = training.fairseq_config(groups)
    assert found.lr_scheduler._name in ("mcan_steps", "inverse_sqrt") and found.model._name == "sa_mcan"
    options = vqa_model.options_of(found.model.options)
    pixels = config["task"]["data"]["input"] == "pixels"
    spec = ImageSpec("pixels", (64, 64), 3) if pixels else ImageSpec("features", (14, 14), 2048)
    options.reduction = "discrete"  # the basis functions are numbers, which the meta device has not
    with torch.device("meta"):  # sizes only
        net = Mcan(options, spec, 30, 13, torch.nn.Identity(), 0)
    assert net.grid == ((8, 8) if pixels else (14, 14))
    if profile == "paper":
        assert (options.layers, options.hidden_dim) == (6, 512 if model == "mcan_small" else 1024)
