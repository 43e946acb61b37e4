"""Cells of each family, and with mappings that have a state, from configuration to scores: what is measured is declared."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from repro.identity import as_named, asked_id, scoring
from repro.statistics import corpus_score, noise_of
from repro.store import Store
from repro.tables import paired
from tasks.cells import seq2seq
from tasks.cells._training import TrainingMonitor
from tasks.data import DataError

FAMILIES = ("pairs", "shared", "entailment", "sentiment", "vqa", "multilabel")
SHARED = "task=toy profile=demo runtime.device=cpu data.limits={train:60,dev:16,test:8} encode.joint=true".split()
SHARED += "model.share_embeddings=true model.embed_dim=8 model.hidden_dim=8 train.max_epochs=1 decode.beam=2".split()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("cells"))


@pytest.fixture(scope="module")
def finished(small_cell, prepared_cell, ran, store):
    """`finished(name)`: (cell, entry, what was found) of a cell that has run, once."""
    cell = prepared_cell(SHARED)
    ran(cell, store)

    def finished(name: str):
        one, entry = (cell, cell.entry(store)) if name == "shared" else small_cell(name)
        return one, entry, one.results(Store(entry.folder.parents[3]))

    return finished


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_measured_is_declared_and_the_folder_holds_what_scoring_needs(finished, name):
    cell, entry, found = finished(name)
    assert {metric.rsplit("/", 1)[-1] for metric in found.metrics} <= cell.family.METRICS.keys()
    assert {"test", "dev", "train"} <= {metric.split("/", 1)[0] for metric in found.metrics}
    for system, values in found.baselines.items():
        assert any(metric in found.metrics for metric in values), system
    assert name == "multilabel" or found.metrics["best_epoch"] >= 1
    folder = entry.folder
    assert (folder / "weights.safetensors").is_file() and any((folder / "encoding").iterdir())
    model, encoding = cell.family.load(cell.config, folder)
    assert encoding.folder == folder / "encoding" and not getattr(model, "training", False)
    if name == "shared":
        assert model.source_embed.weight is model.target_embed.weight is model.generator.weight
        other, _ = cell.family.load(cell.config, folder)
        assert torch.equal(other.generator.weight, model.generator.weight)
        plain = type(model)(model.options, *[model.generator.out_features] * 2, {"cross": model.attention.mapping})
        assert not torch.equal(plain.generator.weight, model.generator.weight), "the weights are the trained ones"


@pytest.mark.parametrize("name", FAMILIES)
def test_an_interval_over_examples_is_of_the_printed_score_or_there_is_none(finished, name):
    cell, _, found = finished(name)
    known = {}
    for full, score in found.metrics.items():
        metric = cell.family.METRICS[full.rpartition("/")[2]]
        value, (rows,) = paired.value([found], full, metric), paired._shared([[found]], full, metric)
        if metric.test is None or not rows.size:
            assert value.error == 0, full
            continue
        printed = corpus_score(rows.sum(1)) if metric.test != "mean" else rows.mean()
        assert (printed, value.error) == (pytest.approx(score, abs=1e-3), noise_of(rows).whole), full
        known[full] = metric.test
    of_types = [f"test/accuracy{kind}" for kind in ("", "_yes_no", "_other")]
    of_text = [f"test/{score}" for score in ("bleu", "rouge1_f", "rouge2_f", "rougeL_f")]
    own = {"vqa": of_types, "multilabel": ["test/f1"], "pairs": of_text, "shared": of_text}.get(name, of_types[:1])
    assert sorted(known) == sorted(own)


def test_what_names_a_training_and_what_its_evaluation_alone(prepared_cell, composed):
    cell = prepared_cell(SHARED)
    other = prepared_cell([*SHARED, "decode.beam=3", "task.scores=[rouge_f1]"])
    assert other.training_id == cell.training_id
    assert other.evaluation_id(other.tests[0]) != cell.evaluation_id(cell.tests[0])
    cut = prepared_cell([*SHARED, "data.limits.test=4"])
    assert cut.training_id == cell.training_id and cut.tests[0].sha256 != cell.tests[0].sha256
    assert prepared_cell([*SHARED, "train.max_epochs=2"]).training_id != cell.training_id
    tagged = [*SHARED, "mapping=fertility_sparsemax", *TAGGED, "model.share_embeddings=false"]
    one, same, another = (prepared_cell([*tagged, *more]) for more in ([], [], ["model.tagger_epochs=3"]))
    assert one.training_id == same.training_id != another.training_id
    of = [*SHARED, "mapping=fertility_sparsemax", "model.name=lstm_fertility"]
    for kind, same in (("constant", True), ("guided", False), ("actual", False)):
        links = [[*of, f"+model.fertility={kind}", f"+model.forward_links={code}"] for code in ("true", "false")]
        one, other = (asked_id(composed(overrides), seq2seq) for overrides in links)
        assert (one == other) == same, "constant fertilities are read from no aligner"
    before = composed([*of, "+model.fertility=guided", "+model.forward_links=false"])
    stored = {k: v for k, v in before["model"].items() if k not in ("forward_links", "coverage_loss", "output")}
    assert as_named(before, seq2seq)["model"] == stored, "the cells from before the three options"
    plain, asked = composed(SHARED), composed([*SHARED, "decode.coverage_penalty=0.2"])
    for named in (scoring, as_named):  # a penalty that is not asked for
        assert "coverage_penalty" not in named(plain, seq2seq)["decode"]
    assert scoring(asked, seq2seq)["decode"]["coverage_penalty"] == 0.2
    with pytest.raises(DataError, match=r"has 1 text\(s\) per example"):
        prepared_cell(["task=snli", "data=toy_reviews", "encode.vectors=null", "data.limits={train: 60}"])


MODEL = ("model.name=lstm_fertility", "task.scores=[bleu,meteor,repetition]")
TAGGED = (*MODEL, "+model.fertility=predicted", "+model.tagger_dim=8", "+model.tagger_epochs=2")


@pytest.fixture(scope="module")
def run(prepared_cell, ran, tiny, store):
    def run(*overrides: str):
        cell = prepared_cell([*tiny, *overrides])
        ran(cell, store)
        return cell, cell.results(store)

    return run


KINDS = [("fertility_softmax", ["+model.constant=1"])]
KINDS += [("fertility_sparsemax", ["+model.fertility=guided", "mapping.c=0.2"])]
KINDS += [("fertility_softmax", ["+model.fertility=actual", "model.input_feeding=true"])]


@pytest.mark.parametrize("mapping, more", KINDS, ids=["constant", "guided", "actual"])
def test_every_kind_trains_and_is_scored(run, mapping, more):
    cell, found = run(f"mapping={mapping}", *MODEL, *more)
    for name in ("rep_score", "drop_score", "source_coverage", "loops", "meteor", "bleu"):
        assert f"test/{name}" in found.metrics
    attention = load_file(found.evaluations["test"].path("attention.safetensors"))
    most = max(float(p.sum(0).max()) for p in attention.values())
    assert most <= (1 + 1e-5 if more == ["+model.constant=1"] else 20)
    model, _ = cell.family.load(cell.config, found.folder)
    if more[0].endswith("guided"):
        assert model.of_type.max() > 1
    if more[0].endswith("actual"):
        assert min(float(p.sum(0).min()) for p in attention.values()) > 0, "a word can never be attended to"


def test_the_tagger_is_a_cell_of_its_own_that_two_translations_share(run, store):
    before = {entry.folder for entry in store}
    one, found = run("mapping=fertility_sparsemax", *TAGGED)
    taggers = [e for e in store if e.folder.parent.parent.name == "fertility"]
    assert len(taggers) == 1 and taggers[0].finished()
    assert '"test/accuracy"' in next(taggers[0].folder.glob("evaluations/*/metrics.json")).read_text(encoding="utf-8")
    scored = [k for k in taggers[0].read()["metrics"] if k.startswith("dev/")]
    assert "dev/accuracy" in scored
    config = seq2seq.tagger_of(one.config)
    assert (config["optim"]["clip"], config["optim"]["betas"], config["optim"]["lr"]) == (0.0, [0.9, 0.999], 1e-3)
    earlier = seq2seq.tagger_of({**one.config, "model": {**one.config["model"], "forward_links": False}})
    assert (earlier["optim"]["clip"], earlier["optim"]["betas"]) == (5.0, [0.9, 0.98])
    told = [r["fertility"] + r["aligned"] for r in taggers[0].evaluations()[0].predictions()]
    assert min(map(min, told)) == 1 and max(map(max, told)) <= 255
    stamp = taggers[0].path("manifest.json").stat().st_mtime_ns
    two, _ = run("mapping=fertility_softmax", "seed=2", *TAGGED)
    assert {e.folder for e in store} - before == {one.entry(store).folder, two.entry(store).folder, taggers[0].folder}
    assert taggers[0].path("manifest.json").stat().st_mtime_ns == stamp
    other, _ = one.family.load(one.config, found.folder)
    weights = load_file(taggers[0].path("weights.safetensors"))
    assert all(torch.equal(v, weights[k]) for k, v in other.tagger.state_dict().items())
    assert not any(p.requires_grad for p in other.tagger.parameters())


def test_a_collapse_of_the_attention_is_told_once_after_the_epoch_where_it_shows():
    told, config = [], {"mapping": {"name": "sparsemax"}, "model": {"score_scale": 4.0}, "optim": {"lr": 0.01}}
    monitor = TrainingMonitor(SimpleNamespace(curve=lambda rows: None, note=told.append, stage=None), config)
    keys, history = ("epoch", "dev/attention_support", "dev/attention_zeros", "dev/accuracy", "dev/ppl"), []
    for values in ((1, 8.8, 0, 11, 99), (2, 1.2, 0.8, 11, 98), (3, 1.1, 0.8, 13, 97), (4, 1.1, 0.8, 13, 97)):
        history.append(dict(zip(keys, map(float, values))))
        monitor.curve(history)
        assert len(told) == (values[0] >= 3)
    assert told[0].startswith("WARNING: epoch 3: all attention is on one word in at least 90 % of steps since epoch 2")
    assert "model.score_scale=0.02 (it is 4)" in told[0]
