"""What is misspelt, impossible or of the wrong kind is refused when composing: in words, all at once, before any data."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import yaml

from tasks import data
from tasks.config import compose
from tasks.config.options import read

SNLI, IMDB, VQA = ["task=snli"], ["task=imdb", "mapping=continuous_sparsemax"], ["task=vqa"]
MULTILABEL = ["task=multilabel", "mapping=sparsehourglass"]


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    def touched(*_, **__):
        raise AssertionError("data were opened")

    monkeypatch.setattr(data, "open_data", touched)


def refused(composed, overrides) -> str:
    with pytest.raises(compose.ConfigError) as caught:
        composed(overrides)
    return str(caught.value)


# Overrides of task=toy, and words that the refusal must say.
WRONG = [
    (["mapping=fusedmax", "mapping.lam=-1"], ["lam=-1", "lam >= 0"]),
    (["mapping=pnormmax", "mapping.p=3"], ["p=3", "1 < p <= 2"]),
    (["mapping=sparsegen_lin", "mapping.lam=1"], ["lam=1", "lam < 1"]),
    (["mapping=entmax", "mapping.alpha=high"], ["alpha='high'", "not a number", "alpha > 0 or learned"]),
    (["mapping=entmax", "mapping.alpha=lerned"], ["alpha='lerned'", "did you mean 'learned'?"]),
    (["mapping=custom", "mapping.name=sparsmax"], ["sparsmax", "sparsemax"]),
    (["mapping=custom"], ["mapping.name must be set"]),
    (["mapping=softmax", "+mapping.gama=2"], ["gama", "gamma"]),
    (["mapping=oscarmax", "mapping.mode=printed"], ["printed", "exact, paper"]),
    (["mapping=continuous_sparsemax"], ["continuous_sparsemax", "density", "row", "cross"]),
    (["mapping=custom", "mapping.name=constrained_sparsemax"], ["constrained_sparsemax", "bounds"]),
    (["mapping=constrained_softmax"], ["bounds"]),
    (["mapping=sum_normalization"], ["sum_normalization has no value where a score is negative", "'cross'", "sparsehourglass"]),
    (["+mapping.at.encoder={name: softmax}"], ["mapping.at.encoder", "cross"]),
    (["+mapping.at.cross={name: fusedmx}"], ["mapping.at.cross", "fusedmx", "fusedmax"]),
    (["mapping.grid=paper"], ["mapping.grid='paper'"]),
    (["mapping.at=cross"], ["mapping.at='cross'"]),
    (["train.precision=fp8"], ["train.precision='fp8'", "fp32, fp16, bf16"]),
    (["train.max_epochs=0"], ["train.max_epochs=0", "at least 1"]),
    (["train.max_epochs=2.5"], ["train.max_epochs=2.5", "whole number"]),
    (["train.batch_size=many"], ["train.batch_size='many'"]),
    (["train.max_tokens=-3"], ["train.max_tokens=-3", "null"]),
    (["train.best_metric=acuracy"], ["train.best_metric='acuracy'", "accuracy"]),
    (["train.best_metric=f1"], ["train.best_metric='f1'", "task=toy"]),
    (["runtime.device=tpu"], ["runtime.device='tpu'", "cpu, cuda"]),
    (["runtime.workers=0"], ["runtime.workers=0", "at least 1"]),
    (["runtime.verbose=2"], ["runtime.verbose=2", "true or false"]),
    (["seed=-1"], ["seed=-1"]),
    (["seed=2147483648"], ["seed=2147483648", "at most"]),
    (["seed=one"], ["seed='one'"]),
    (["seed=1.5"], ["seed=1.5", "whole number"]),
    (["mapping=fusedmax", "mapping.lam=1e9"], ["mapping.lam=1e+09", "at most 1e+06"]),
    (["mapping=softmax", "mapping.lam=1"], ["mapping.lam is not in the configuration", "name, gamma, at, grid"]),
    (["mapping=sigmoid", "model=lstm_demo"], ["mapping=sigmoid gives rows that do not sum to 1", "needs at 'cross'"]),
    (["mapping=softmax1", "model=transformer_small"], ["'cross'; it takes them at mapping.at.encoder, mapping.at.decoder"]),
    (["optim.lr=0"], ["optim.lr=0", "above 0"]),
    (["optim.lr=1000"], ["optim.lr=1000", "at most 100"]),
    (["optim.lr=fast"], ["optim.lr='fast'"]),
    (["optim.betas=[0.9]"], ["optim.betas=[0.9]", "list of 2"]),
    (["optim.betas=[0.9,1.0]"], ["1.0 at place 2"]),
    (["optim.label_smoothing=1"], ["optim.label_smoothing=1", "below 1"]),
    (["optim.name=rmsprop"], ["optim.name='rmsprop'", "sgd, adam"]),
    (["schedule.name=cosine"], ["schedule.name='cosine'", "latched_halving, plateau, inverse_sqrt, epoch_steps"]),
    (["schedule.warmup_updates=0"], ["schedule.warmup_updates=0"]),
    (["schedule=epoch_steps", "schedule.decay_epochs=[x]"], ["'x' at place 1"]),
    (["model.dropout=1"], ["model.dropout=1", "below 1"]),
    (["model.attention=cosine"], ["model.attention='cosine'", "general", "dot", "additive"]),
    (["model.name=lstmm"], ["model.name='lstmm'", "did you mean 'lstm'"]),
    (["model=mcan_small"], ["model.name='mcan'", "lstm"]),
    (["model.share_embeddings=true"], ["share_embeddings", "encode.joint=true"]),
    (["decode.beam=0"], ["decode.beam=0"]),
    (["decode.length=short"], ["decode.length='short'", "average, none"]),
    (["encode.tokenizer=mosess"], ["mosess", "moses"]),
    (["task.scores=[blue]"], ["blue", "bleu"]),
    (["task.family=seq2sec"], ["task.family='seq2sec'", "'seq2seq'"]),
    (["data=snli"], ["this task reads"]),
    (["data.name=multi3k"], ["multi3k", "multi30k"]),
    (["data.limits.train=0"], ["limits", "train=0"]),
    (["logger=wandb", "logger.wandb.mode=maybe"], ["logger.wandb.mode='maybe'", "auto, online, offline"]),
    (["logger=wandb", "logger.wandb.timeout=0"], ["logger.wandb.timeout=0", "above 0"]),
    (["logger=wanbd"], ["logger='wanbd'", "did you mean 'wandb'?", "csv, tensorboard, wandb"]),
    (["logger=[wandb,tensorbord]"], ["logger='tensorbord'", "did you mean 'tensorboard'?"]),
    (["+logger.wanbd={}"], ["logger.wanbd", "did you mean 'wandb'?", "csv, tensorboard, wandb"]),
    (["paths.data=null"], ["paths.data=None"]),
    (["plugins=[nowhere.py]"], ["nowhere.py"]),
    (["plugins=nowhere.py"], ["plugins='nowhere.py'", "list"]),
]  # fmt: skip

# Overrides that used to be taken in silence: keys nobody reads, words in place of nodes, what is not there.
SILENT = [
    (["+train.max_epoch=2"], ["train.max_epoch is unknown", "'max_epochs'"]),
    (["+optim.foo=1"], ["optim.foo is unknown", "lr, clip"]),
    (["+optim.lrr=1"], ["optim.lrr is unknown", "'lr'"]),
    (["+foo=1"], ["foo is unknown", "task, data"]),
    (["+trian.max_epochs=2"], ["trian is unknown", "'train'"]),
    (["+model.hidden=2"], ["model.hidden is unknown", "'hidden_dim'"]),
    (["+schedule.warmup=2"], ["schedule.warmup is unknown", "'warmup_updates'"]),
    (["+encode.foo=1"], ["encode.foo is unknown"]),
    (["+decode.foo=1"], ["decode.foo is unknown"]),
    (["+task.foo=1"], ["task.foo is unknown"]),
    (["+task.data.name=gigaword"], ["task.data is unknown"]),
    (["+runtime.foo=1"], ["runtime.foo is unknown"]),
    (["+profile.comparable=true"], ["profile.comparable is unknown"]),
    (["+data.foo=1"], ["data.foo is unknown"]),
    (["+data.path=somewhere"], ["data.path is unknown"]),
    (["grid=paper"], ["grid"]),
    (["+grid=paper"], ["grid is unknown"]),
    (["train=3"], ["train=3", "must be a mapping"]),
    (["runtime=fast"], ["runtime='fast'", "must be a mapping"]),
    (["train.max_epoch=3"], ["max_epoch"]),
    (["task.data.path=my.csv"], ["task.data.path"]),
]  # fmt: skip

OF_TASKS = [
    (["task=multilabel", "mapping=entmax", "mapping.alpha=learned"], ["mapping.alpha=learned", "give a number"]),
    (["task=imdb", "data.path=my.csv"], ["data.path"]),
    (["task=translation", "data.path=FOLDER"], ["data.path"]),
    (["task=translation", "data.mirror=FOLDER"], ["data.mirror"]),
    (["task=translation", "mapping=continuous_softmax"], ["continuous_softmax", "density"]),
    (["task=snli", "model=lstm_opennmt"], ["model.name='lstm'", "snli_attentive"]),
    ([*SNLI, "mapping=continuous_softmax"], ["continuous_softmax", "density"]),
    ([*SNLI, "model.l2=-1"], ["model.l2=-1"]), ([*SNLI, "train.best_metric=bleu"], ["bleu", "accuracy, loss"]),
    ([*SNLI, "task.keep_attention=-3"], ["keep_attention=-3"]),
    ([*IMDB, "model.discrete=foo"], ["model.discrete='foo'", "softmax"]), ([*IMDB, "model.rbf=33"], ["rbf=33"]),
    ([*IMDB, "model.rbf=-4"], ["model.rbf=-4"]), ([*IMDB, "model.widths=wide"], ["widths"]),
    ([*IMDB, "model.positions=left"], ["model.positions='left'", "right_edge"]), ([*IMDB, "model.ridge=0"], ["model.ridge=0"]),
    (["task=imdb", "mapping=softmax", "model.discrete=softmax"], ["model.discrete", "continuous_"]),
    ([*VQA, "model.discrete=foo"], ["foo", "softmax"]), ([*VQA, "model.heads=3"], ["heads=3"]),
    ([*VQA, "mapping=continuous_sparsemax", "mapping.quadrature=foo"], ["foo", "paper-code"]),
    ([*VQA, "model.layers=0"], ["layers=0"]), ([*VQA, "encode.max_tokens=0"], ["max_tokens=0"]),
    ([*VQA, "+encode.foo=1"], ["encode.foo"]), ([*VQA, "model.basis_variance=-1"], ["-1"]),
    ([*MULTILABEL, "data.setting=length", "data.value=0"], ["value=0"]),
    ([*MULTILABEL, "data.sizes.train=0"], ["sizes", "train=0"]), ([*MULTILABEL, "task.tune.penalties=[-1.0]"], ["-1.0", "above 0"]),
    ([*MULTILABEL, "task.tune.penalties=[abc]"], ["abc", "number"]), ([*MULTILABEL, "task.tune.folds=1"], ["folds=1"]),
    ([*MULTILABEL, "data.value=abc"], ["data.value='abc'"]), ([*MULTILABEL, "task.tune.parameters.sparsehourglass.q=[-1]"], ["q=-1"]),
    (["task=multilabel", "mapping=hardmax"], ["hardmax", "softmax"]), (["task=multilabel", "model=lstm_tiny"], ["'lstm'", "linear"]),
]  # fmt: skip


def shown(value) -> str:
    return " ".join(value) if "=" in str(value[0]) else ""


@pytest.mark.parametrize("overrides, said", [*WRONG, *SILENT], ids=shown)
def test_a_wrong_value_is_named_with_what_is_allowed(composed, overrides, said):
    message = refused(composed, ["task=toy", *overrides])
    for text in said:
        assert text in message


@pytest.mark.parametrize("overrides, said", OF_TASKS, ids=shown)
def test_a_wrong_value_of_a_task_is_named(composed, overrides, said):
    message = refused(composed, overrides)
    for text in said:
        assert text in message


def test_a_gpu_that_is_not_there_is_refused_and_auto_takes_what_is(composed, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "torch finds no GPU" in refused(composed, ["task=toy", "runtime.device=cuda"])
    assert composed(["task=toy", "runtime.device=auto"])["runtime"]["device"] == "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert composed(["task=toy", "runtime.device=auto"])["runtime"]["device"] == "cuda"


def test_all_mistakes_are_collected(composed):
    wrong = ["mapping=fusedmax", "mapping.lam=-1", "mapping.gamma=0", "seed=-1", "train.precision=fp8", "+optim.foo=1",
             "model.layers=0", "data.limits.dev=0", "decode.beam=0", "schedule.warmup_updates=0"]  # fmt: skip
    message = refused(composed, ["task=toy", *wrong])
    for text in ("lam=-1", "gamma=0", "seed=-1", "fp8", "optim.foo", "layers=0", "dev=0", "beam=0", "warmup_updates=0"):
        assert text in message


def test_misspelt_choices_name_the_nearest():
    with compose.composer() as made, pytest.raises(compose.ConfigError, match=r"fusedmx.*'fusedmax'"):
        made(["task=toy", "mapping=fusedmx"])
    with pytest.raises(compose.ConfigError, match=r"(?s)niculae_table2.*niculae2017_table2"):
        compose.experiment("niculae_table2", "demo")
    with pytest.raises(compose.ConfigError, match=r"'demmo'.*demo"):
        compose.experiment("niculae2017_table2", "demmo")


def test_an_option_without_a_declaration_is_named():
    @dataclass
    class Options:
        path: str = "x"

    with pytest.raises(
        TypeError, match=r"Options\.path must be declared with integer, number, flag, text, choice or listing"
    ):
        read(Options, {}, "logger.mine")


FUSEDMAX = ("train.py", "task=toy", "mapping=fusedmax")


@pytest.mark.parametrize(
    "command, said",
    [
        ((*FUSEDMAX, "mapping.lamda=1"), "'lam'"),
        ((*FUSEDMAX, "mapping=fusedmx"), "'fusedmax'"),
        ((*FUSEDMAX, "--plann"), "'--plan'"),
        ((*FUSEDMAX, "-m", "mapping.lamda=1,2"), "'lam'"),
        ((*FUSEDMAX, "-m", "train.max_epoch=1,2"), "'max_epochs'"),
        (("train.py", "-m", "experiment=demo", "train.max_epoch=1"), "'max_epochs'"),
        (("reproduce.py", "dmo"), "'demo'"),
        (("reproduce.py", "demo", "train.max_epoch=1"), "'max_epochs'"),
        (("reproduce.py", "laha2018_table2", "mapping.lamda=1"), "'lam'"),
        (("compare.py", "experiment=dmo"), "'demo'"),
        (("compare.py", "taks=toy"), "'task'"),
        (("compare.py", "mapping=softmxa"), "'softmax'"),
        (("evaluate.py", "toy/softmxa"), "'toy/softmax'"),
        (("evaluate.py", "toy/softmax", "data=toi"), "'toy'"),
        (("predict.py", "toy/softmax", "decode.beem=2"), "'beam'"),
        (("predict.py", "toy/softmax", "decod.beam=2"), "'decode'"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_names_are_checked_before_torch_is_imported(script, named, command, said):
    done = script(*command, f"paths.outputs={named}", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 2 and f"did you mean {said}" in done.stderr
    assert re.search(r"\| +yaml$", done.stderr, re.M) and not re.search(r"\| +torch$", done.stderr, re.M)


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A store with the cell toy/softmax, of which only the names are there."""
    root = tmp_path_factory.mktemp("outputs")
    folder = root / "cells" / "toy" / "softmax" / "0123"
    folder.mkdir(parents=True)
    with compose.composer() as composed:
        config = composed(["task=toy"]) | {"module": "tasks.cells.seq2seq"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "manifest.json").write_text("{}")
    return root
