"""What is misspelt, impossible or of the wrong kind is refused when composing: all at once, by its key, before any data."""

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from repro.options import choice, flag, integer, listing, number, read, text
from tasks.config import compose
from tasks.config.request import parsed
from tasks.data import access
from tests.refusals import refused

INF, NAN = math.inf, math.nan
# Of each task, a command line that sets something.
TASKS = """
toy mapping=fusedmax | translation mapping=sparsegen_lin optim=sgd schedule=latched_halving | snli data=toy_entailment
summarization mapping.at.cross=entmax logger=wandb | imdb mapping=continuous_sparsemax model.discrete=softmax
vqa schedule=epoch_steps | multilabel mapping=sparsehourglass
"""


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    def touched(*_, **__):
        raise AssertionError("data were opened")

    monkeypatch.setattr(access, "check_folder", touched)  # what open_data begins with


@pytest.fixture(scope="module")
def bases(composed) -> dict[str, dict]:
    tasks = [line.split() for line in TASKS.strip().replace("\n", "|").split("|")]
    return {task: composed([f"task={task}", "runtime.device=cpu", *more]) for task, *more in tasks}


# Command lines, of task=toy unless they name another, whose last override is refused by its key and value.
TYPED = """
mapping=Softmax | mapping=softmax mapping.lam=1 | ~mapping.at.cross | logger=wanbd | logger=wandb logger.wandb.mode=maybe
logger=wandb logger.wandb.timeout=0 | train.precision=fp8 | train.max_epochs=0 | train.max_epochs=2.5 | train.max_tokens=-3
train.best_metric=acuracy | train.best_metric=f1 | train.class_weights=balanced | train.average=0 | runtime.device=tpu | runtime.verbose=2
seed=2147483648 | seed= | task=null | task=[toy,imdb] | task=../task/toy | task=toi | tasks=toy | optim.lr=0 | optim.lr=1000
optim.betas=[0.9] | optim.betas=[0.9,1.0] | optim.betas.9=3 | optim.label_smoothing=1 | optim.name=rmsprop | schedule.name=cosine
model.attention=cosine | model.name=lstmm | decode.length=short | encode.tokenizer=mosess | task.scores=[blue]
task.family=seq2sec | data=nothing | plugins=nowhere.py | mapping=continuous_sparsemax
mapping=constrained_softmax | mapping=sum_normalization | mapping=sigmoid | +train.max_epoch=2 | train.max_epoch=3 | +optim.lrr=1
+foo=1 | +model.hidden=2 | +schedule.warmup=2 | task.data.path=my.csv | +data.path=somewhere | grid=paper | +grid=paper | setting=none
profile=paper | mapping@place=softmax | hydra.nothing=3 | train=3 | runtime=fast | ~train | ~train.max_epochs | ~nothing | task=imdb data.path=my.csv
task=translation data.path=FOLDER | task=translation data.mirror=FOLDER | task=snli train.best_metric=bleu
task=imdb mapping=continuous_sparsemax model.discrete=foo | task=imdb mapping=continuous_sparsemax model.positions=left
task=vqa model.discrete=foo | task=translation mapping=continuous_softmax | task=snli mapping=continuous_softmax
model=lstm_demo mapping=sigmoid | mapping=fusedmax mapping.lam=1e9
mapping=entmax task=multilabel mapping.alpha=learned
"""


@pytest.mark.parametrize("line", [line.strip() for line in TYPED.replace("\n", "|").split("|") if line.strip()])
def test_a_wrong_override_is_refused_by_its_key_and_value(composed, line):
    overrides = line.split()
    one = parsed(overrides[-1])
    with refused(compose.ConfigError, key=one.key) as caught:
        composed(["task=toy", *overrides] if "task=" not in line else overrides)
    assert "\n" not in str(caught.value)


# Command lines that are refused by another key than that of the last override, and a word of the refusal.
ELSEWHERE = """
mapping=fusedmax mapping.lam=-1 | mapping | lam >= 0; mapping=pnormmax mapping.p=3 | mapping | 1 < p <= 2
mapping=entmax mapping.alpha=high | mapping | alpha > 0 or learned
mapping=entmax mapping.alpha=lerned | mapping | did you mean 'learned'?
mapping=custom mapping.name=sparsmax | mapping | sparsemax; mapping=custom | mapping.name | must be set
mapping=softmax +mapping.gama=2 | mapping | gamma; mapping=oscarmax mapping.mode=printed | mapping | exact, paper
mapping=custom mapping.name=constrained_sparsemax | mapping | bounds
mapping=softmax1 model=transformer_small | mapping | takes them at mapping.at.encoder, mapping.at.decoder
+mapping.at.encoder={name:softmax} | mapping.at.encoder | cross
mapping.at.cross=fusedmx | mapping.at.cross | did you mean 'fusedmax'
mapping.at.cross.lam=1 | mapping.at.cross.name | must be set; +mapping.at={cross:null} | mapping.at | place
+mapping.grid.name=[softmax] | mapping.grid | [values]; data=snli |  | this task reads; data.name=multi3k |  | multi30k
model=mcan_small | model.name | lstm; task=multilabel mapping=hardmax |  | softmax
task=multilabel model=lstm_tiny | model.name | linear; task=snli model=lstm_opennmt | model.name | snli_attentive
logger=[wandb,tensorbord] | logger | did you mean 'tensorboard'?; +logger.wanbd={} | logger.wanbd | did you mean 'wandb'?
+train={max_epoch:3} | train.max_epoch | 'max_epochs'; +trian.max_epochs=2 | trian | 'train'; +seed.x=3 | seed | whole number
seed=1,2 | seed | several values; seed={a:1} | seed | whole number; seed=${nowhere} | seed | nowhere
seed=??? | seed | must be set; optim.lr=${oc.env:NOT_THERE} | optim.lr | NOT_THERE
task=multilabel mapping=sparsehourglass mapping.q=1 task.tune.parameters.sparsehourglass.q=[1] | mapping.q | leave one of
task=multilabel mapping=sparsegen_lin mapping.lam=0 task.tune.parameters={sparsegen_lin:{lam:[0]}} | mapping.lam | tune
task=multilabel optim.lr=0.1 | optim | would change nothing
task=multilabel schedule=plateau train.max_epochs=2 | schedule | schedule=plateau, train.max_epochs=2
task=toy=3 |  | 'task=toy=3'; model.share_embeddings=true |  | encode.joint=true; train.average=99 |  | average=99 must be at most max_epochs; model.output=sparsemax train.best_metric=ppl |  | model.output=sparsemax has no; plugins=[nowhere.py] |  | nowhere.py
task=multilabel data.setting=length data.value=0 |  | value=0
task=multilabel mapping=sparsehourglass task.tune.parameters.sparsehourglass.q=[-1] |  | q=-1
task=imdb mapping=softmax model.discrete=softmax |  | model.discrete
task=imdb mapping=continuous_sparsemax model.rbf=33 |  | rbf=33; task=vqa model.heads=3 |  | heads=3
model.bidirectional=true model.hidden_dim=7 | model.hidden_dim | must be even
model.residual=true model.embed_dim=6 | model.residual | embed_dim == hidden_dim
encode.joint=true model.share_embeddings=true model.embed_dim=6 | model.share_embeddings | embed_dim == hidden_dim
model=transformer_small model.hidden_dim=9 model.heads=2 | model.hidden_dim | even and a multiple of heads=2
model=transformer_small encode.joint=true model.share_embeddings=true model.share_output=false | model.share_output | is not possible
task=imdb model=imdb_transformer_small model.heads=7 | model.hidden_dim | a multiple of heads=7
task=imdb model.positions=centre | model.positions | 'cell_centre'; task=imdb model.rbf=3 model.widths=[0.1,0.5] | model.rbf | widths
task=vqa mapping=entmax model.discrete=sparsemax | model.discrete | mapping=entmax is none; task=vqa model.cnn_strides=[2] | model.cnn | one length
task=vqa model.cnn_channels=[] model.cnn_strides=[] | model.cnn_channels | pixels
task=vqa mapping=continuous_triweight mapping.quadrature=paper-code | mapping | only for alpha 1 and 2
task=vqa mapping=constrained_sparsemax | mapping | 'image'; mapping=fertility_sparsemax | mapping | models that provide it: lstm_fertility
model.name=lstm_fertility mapping=constrained_sparsemax | mapping | it can feed: fertility_softmax, fertility_sparsemax
model.name=lstm_fertility mapping=softmax +model.fertility=guided | model.fertility | is not read by mapping=softmax
model.name=lstm_continuous mapping=softmax | mapping | this model attends over a density
model.name=lstm_continuous mapping=continuous_mixture | mapping | is for images
model.name=lstm_continuous mapping=continuous_sparsemax mapping.quadrature=paper-code | mapping.quadrature | is for images
model.name=lstm_continuous mapping=continuous_softmax model.mask_padding=false | model.mask_padding | only the words
model.name=lstm_continuous mapping=continuous_softmax +model.rbf=31 | model.rbf | multiple of 3
model.name=lstm_continuous mapping=continuous_softmax +model.discrete=none | model.discrete | allowed: softmax
runtime.device=cpu train.precision=fp16 | train.precision | needs a GPU; train.batch_size=null | train.batch_size | needs max_tokens
train.batch_size=16 train.processes=3 | train.processes | possible: processes=1, 2
task=multilabel mapping=softmax task.loss=hinge | task.loss | cannot be used with mapping=softmax
task=multilabel mapping=spherical_softmax |  | mappings that have one: entmax; task=multilabel mapping=softmax mapping.gamma=2 |  | mapping.gamma=1
task=multilabel task.tune.penalties=[0.1,1.0] | task.tune.penalties | from large to small
task=multilabel mapping=sparsegen_lin task.tune.parameters.sparsegen_lin.lam=[] | task.tune.parameters | sparsegen_lin
"""
# Of what is no override and of problems between nodes, the sentence names what was typed.
LINES = [[part.strip() for part in line.split("|")] for line in ELSEWHERE.strip().replace("\n", ";").split(";")]
CASES = [(line.split(), key, says) for line, key, says in LINES]
CASES += [([typed], "", typed) for typed in ("decode.beam=[1", "decode.beam=${", "a b=3", "=3", "seed", "")]


@pytest.mark.parametrize("overrides, key, says", CASES, ids=lambda of: " ".join(of) if isinstance(of, list) else "")
def test_what_is_wrong_elsewhere_is_refused_by_its_key(composed, overrides, key, says):
    with refused(compose.ConfigError, says, key=key):
        composed(["task=toy", *overrides] if not overrides[0].startswith("task=") else overrides)


def test_names_of_ones_own_can_be_added_and_taken_away(composed):
    config = composed(["task=toy", "+mapping.at.cross={name: entmax}", "~mapping.at.cross"])
    assert config["mapping"]["at"] == {}
    grid = composed(["task=toy", "mapping=fusedmax", "mapping.grid={lam: [1, 2]}"])["mapping"]["grid"]
    assert grid["lam"] == [1, 2]
    tuned = composed(["task=multilabel", "~task.tune.parameters.sparsegen_lin"])["task"]["tune"]["parameters"]
    assert "sparsegen_lin" not in tuned


def test_a_gpu_or_an_experiment_that_is_not_there_is_refused_and_auto_takes_what_is(composed, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with refused(compose.ConfigError, "torch finds no GPU"):
        composed(["task=toy", "runtime.device=cuda"])
    assert composed(["task=toy", "runtime.device=auto"])["runtime"]["device"] == "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert composed(["task=toy", "runtime.device=auto"])["runtime"]["device"] == "cuda"
    table = "niculae2017_table2"
    for name, profile, meant in (("niculae_table2", "demo", table), (table, "demmo", "demo")):
        with refused(compose.ConfigError, f"did you mean '{meant}'"):
            compose.experiment(name, profile)


@pytest.mark.parametrize(
    "kind, good, wrong",
    [
        (integer(low=1, high=9), [1, 9], [0, 10, 1.0, True, "1", None, NAN, [1]]),
        (integer(low=1, optional=True), [None, 1], [0]),
        (number(low=0, high=1), [0, 0.5, 1], [-0.1, 1.1, NAN, INF, True, "1", None]),
        (number(above=0, below=1), [0.5], [0, 1]),
        (number(), [-1e15], [INF, -INF, 1e16]),
        (flag(), [True], [1, "true", None]),
        (text(), ["a b"], ["", " ", "a\nb", 3, None]),
        (choice("a", names=lambda: ["b"]), ["a", "b"], ["c", None, 1]),
        (listing(integer(low=1), least=1), [[1, 2]], [[], [0], 1, "1"]),
        (listing(number(), length=2), [[1, 2]], [[1], [1, 2, 3]]),
    ],
)
def test_a_kind_of_option_takes_its_values_alone(kind, good, wrong):
    Options = dataclass(type("Options", (), {"__annotations__": {"key": object}, "key": kind}))
    assert [read(Options, {"key": value}, "node").key for value in good] == good
    for value in wrong:
        with pytest.raises(compose.ConfigError) as caught:
            read(Options, {"key": value}, "node")
        told = str(caught.value)
        assert told.startswith(f"node.key={value!r} ") and told.endswith(" or null") == (None in good)


def test_a_field_without_a_kind_takes_what_its_type_says():
    @dataclass
    class Options:
        key: Mapping[str, Any]
        words: tuple[str, ...] = ()

    made = read(Options, {"key": {"a": 1}, "words": [["a", "b"], "c"]})  # the list of an anchor within a list
    assert made == Options({"a": 1}, ("a", "b", "c"))
    with refused(compose.ConfigError, "words=[['a'], 3] has 3 at place 2, which must be text"):
        read(Options, {"key": {}, "words": [["a"], 3]})
    for value in ([], "a", {1: 2}):
        with refused(compose.ConfigError, f"key={value!r} "):
            read(Options, {"key": value})


def leaves(node: Mapping, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every key with its value, also those of whole nodes."""
    for key, value in node.items():
        yield (*path, key), value
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, key))


def changed(config: dict, path: tuple[str, ...], value: object) -> dict:
    node = config = copy.deepcopy(config)
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return config


def test_every_key_refuses_what_is_of_another_kind(bases):
    """In a complete configuration of each task; also numbers that are none."""
    accepted, count = [], 0
    for task, base in bases.items():
        for path, before in leaves(base):
            numeric = isinstance(before, (int, float)) and not isinstance(before, bool)
            for value in ["word"] if isinstance(before, Mapping) else [{"x": 1}, *([NAN] if numeric else [])]:
                count += 1
                try:
                    compose.completed(changed(base, path, value))
                except compose.ConfigError as error:
                    assert path[-1] in str(error), (task, path, value)
                else:
                    accepted.append((task, ".".join(path), value))
    assert count > 700 and accepted == []


# One value outside the range of each key.
RANGES = {
    "translation": "decode.beam=0 decode.max_len_b=0 decode.batch_size=0 optim.lr=101 optim.label_smoothing=1",
    "vqa": "encode.max_tokens=0 encode.min_answer_count=0 model.layers=0 model.heads=0 model.basis_side=0 model.dropout=1",
    "imdb": "model.rbf=0 model.score_dim=0 model.dropout=1 model.ridge=0",
    "snli": "model.word_dropout=1",
    "multilabel": "task.tune.thresholds=[2] task.tune.folds=1",
    "toy": """seed=-1 optim.clip=-1 optim.eps=0 optim.weight_decay=1 runtime.save_minutes=0 runtime.data_workers=-1
        runtime.threads=0 runtime.workers=0 decode.max_len_a=-1 train.batch_size=0 train.batch_size_valid=0
        train.update_freq=0 train.processes=0 encode.vocab_size=0 data.limits.train=0 model.embed_dropout=1
        model.layers=0 paths.data="" schedule.warmup_updates=0 encode.min_count=0 task.keep_attention=-1""",
}


def test_all_values_out_of_range_are_told_at_once(bases):
    for task, wrong in RANGES.items():
        config, keys = bases[task], {"optim.foo"}
        for key, value in (one.split("=") for one in wrong.split()):
            config = changed(config, tuple(key.split(".")), json.loads(value))
            keys.add(key)
        config["optim"]["foo"] = 1
        with pytest.raises(compose.ConfigError) as caught:
            compose.completed(config)
        told = {re.split("[= ]", problem)[0] for problem in caught.value.problems}
        assert keys <= told, task
