"""What is misspelt, impossible or of the wrong kind is refused when composing: in words, all at once, before any data."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from tasks.config import compose
from tasks.config.options import read
from tasks.data import access

INF, NAN = math.inf, math.nan
TASKS = {
    "toy": ["mapping=fusedmax"],
    "translation": ["mapping=sparsegen_lin", "optim=sgd", "schedule=latched_halving"],
    "summarization": ["+mapping.at.cross={name: entmax}", "logger=wandb"],
    "snli": ["data=toy_entailment"],
    "imdb": ["mapping=continuous_sparsemax", "model.discrete=softmax"],
    "vqa": ["schedule=epoch_steps"],
    "multilabel": ["mapping=sparsehourglass"],
}


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    def touched(*_, **__):
        raise AssertionError("data were opened")

    monkeypatch.setattr(access, "check_folder", touched)  # what open_data begins with


@pytest.fixture(scope="module")
def bases(composed) -> dict[str, dict]:
    return {task: composed([f"task={task}", "runtime.device=cpu", *more]) for task, more in TASKS.items()}


def refused(composed, overrides) -> str:
    with pytest.raises(compose.ConfigError) as caught:
        composed(overrides)
    return str(caught.value)


# ---- the command line

# Overrides, of task=toy unless they name another, and words that the refusal must say.
WRONG = [
    (["mapping=fusedmax", "mapping.lam=-1"], ["lam=-1", "lam >= 0"]),
    (["mapping=pnormmax", "mapping.p=3"], ["p=3", "1 < p <= 2"]),
    (["mapping=sparsegen_lin", "mapping.lam=1"], ["lam=1", "lam < 1"]),
    (["mapping=fusedmax", "mapping.lam=1e9"], ["mapping.lam=1e+09", "at most 1e+06"]),
    (["mapping=entmax", "mapping.alpha=high"], ["alpha='high'", "not a number", "alpha > 0 or learned"]),
    (["mapping=entmax", "mapping.alpha=lerned"], ["alpha='lerned'", "did you mean 'learned'?"]),
    (["mapping=custom", "mapping.name=sparsmax"], ["sparsmax", "sparsemax"]),
    (["mapping=custom"], ["mapping.name must be set"]),
    (["mapping=Softmax"], ["'softmax'"]),
    (["mapping=softmax", "+mapping.gama=2"], ["gama", "gamma"]),
    (["mapping=softmax", "mapping.lam=1"], ["mapping.lam is not in the configuration", "name, gamma, at, grid"]),
    (["mapping=oscarmax", "mapping.mode=printed"], ["printed", "exact, paper"]),
    (["mapping=continuous_sparsemax"], ["continuous_sparsemax", "density", "row", "cross"]),
    (["mapping=constrained_softmax"], ["bounds"]),
    (["mapping=custom", "mapping.name=constrained_sparsemax"], ["constrained_sparsemax", "bounds"]),
    (["mapping=sum_normalization"], ["has no value where a score is negative", "'cross'", "sparsehourglass"]),
    (["mapping=sigmoid", "model=lstm_demo"], ["mapping=sigmoid gives rows that do not sum to 1", "needs at 'cross'"]),
    (["mapping=softmax1", "model=transformer_small"], ["'cross'", "takes them at mapping.at.encoder, mapping.at.decoder"]),
    (["+mapping.at.encoder={name: softmax}"], ["mapping.at.encoder", "cross"]),
    (["mapping.at.cross=fusedmx"], ["mapping.at.cross", "fusedmx", "fusedmax"]),
    (["mapping.at.cross.lam=1"], ["mapping.at.cross.name must be set"]),
    (["+mapping.at={cross: null}"], ["mapping.at"]),
    (["~mapping.at.cross"], ["mapping.at.cross"]),
    (["+mapping.grid.name=[softmax]"], ["mapping.grid"]),
    (["mapping@place=softmax"], ["mapping@place"]),
    (["train.precision=fp8"], ["train.precision='fp8'", "fp32, fp16, bf16"]),
    (["train.max_epochs=0"], ["train.max_epochs=0", "at least 1"]),
    (["train.max_epochs=2.5"], ["train.max_epochs=2.5", "whole number"]),
    (["train.max_tokens=-3"], ["train.max_tokens=-3", "null"]),
    (["train.best_metric=acuracy"], ["train.best_metric='acuracy'", "accuracy"]),
    (["train.best_metric=f1"], ["train.best_metric='f1'", "task=toy", "allowed: accuracy, bleu, chrf, loss, ppl"]),
    (["runtime.device=tpu"], ["runtime.device='tpu'", "cpu, cuda"]),
    (["runtime.verbose=2"], ["runtime.verbose=2", "true or false"]),
    (["seed=2147483648"], ["seed=2147483648", "at most"]),
    (["optim.lr=0"], ["optim.lr=0", "above 0"]),
    (["optim.lr=1000"], ["optim.lr=1000", "at most 100"]),
    (["optim.betas=[0.9]"], ["optim.betas=[0.9]", "list of 2"]),
    (["optim.betas=[0.9,1.0]"], ["1.0 at place 2"]),
    (["optim.label_smoothing=1"], ["optim.label_smoothing=1", "below 1"]),
    (["optim.name=rmsprop"], ["optim.name='rmsprop'", "sgd, adam"]),
    (["schedule.name=cosine"], ["schedule.name='cosine'", "latched_halving, plateau, inverse_sqrt, epoch_steps"]),
    (["model.attention=cosine"], ["model.attention='cosine'", "general", "dot", "additive"]),
    (["model.name=lstmm"], ["model.name='lstmm'", "did you mean 'lstm'"]),
    (["model=mcan_small"], ["model.name='mcan'", "lstm"]),
    (["model.share_embeddings=true"], ["share_embeddings", "encode.joint=true"]),
    (["decode.length=short"], ["decode.length='short'", "average, none"]),
    (["encode.tokenizer=mosess"], ["mosess", "moses"]),
    (["task.scores=[blue]"], ["blue", "bleu"]),
    (["train.class_weights=balanced"], ["train.class_weights is for classifiers", "leave it out"]),
    (["task.scores=[COMET]"], ["task.scores", "EVALUATION/predictions.jsonl.gz", "comet-score -s s -t t -r r"]),
    (["task.family=seq2sec"], ["task.family='seq2sec'", "'seq2seq'"]),
    (["data=snli"], ["this task reads"]),
    (["data=nothing"], ["data='nothing'"]),
    (["data.name=multi3k"], ["multi3k", "multi30k"]),
    (["logger=wandb", "logger.wandb.mode=maybe"], ["logger.wandb.mode='maybe'", "auto, online, offline"]),
    (["logger=wandb", "logger.wandb.timeout=0"], ["logger.wandb.timeout=0", "above 0"]),
    (["logger=wanbd"], ["logger='wanbd'", "did you mean 'wandb'?", "csv, tensorboard, wandb"]),
    (["logger=[wandb,tensorbord]"], ["logger='tensorbord'", "did you mean 'tensorboard'?"]),
    (["+logger.wanbd={}"], ["logger.wanbd", "did you mean 'wandb'?", "csv, tensorboard, wandb"]),
    (["plugins=[nowhere.py]"], ["nowhere.py"]),
    (["plugins=nowhere.py"], ["plugins='nowhere.py'", "list"]),
    # keys that nobody reads, words in place of nodes, what is not there
    (["+train.max_epoch=2"], ["train.max_epoch is unknown", "'max_epochs'"]),
    (["train.max_epoch=3"], ["'max_epochs'"]),
    (["+train={max_epoch: 3}"], ["max_epoch"]),
    (["+optim.lrr=1"], ["optim.lrr is unknown", "'lr'"]),
    (["+trian.max_epochs=2"], ["trian is unknown", "'train'"]),
    (["+foo=1"], ["foo is unknown", "task, data"]),
    (["+a.b.c=3"], ["a is unknown"]),
    (["+model.hidden=2"], ["model.hidden is unknown", "'hidden_dim'"]),
    (["+schedule.warmup=2"], ["schedule.warmup is unknown", "'warmup_updates'"]),
    (["+task.data.name=gigaword"], ["task.data is unknown"]),
    (["task.data.path=my.csv"], ["task.data.path"]),
    (["+data.path=somewhere"], ["data.path is unknown"]),
    (["+seed.x=3"], ["seed"]),
    (["grid=paper"], ["grid"]),
    (["+grid=paper"], ["grid is unknown"]),
    (["setting=none"], ["setting"]),
    (["profile=paper"], ["profile=paper"]),
    (["hydra.nothing=3"], ["hydra.nothing"]),
    (["tasks=toy"], ["'task'"]),
    (["train=3"], ["train=3", "must be a mapping"]),
    (["runtime=fast"], ["runtime='fast'", "must be a mapping"]),
    (["task=toi"], ["'toy'"]),
    (["~train"], ["~train"]),
    (["~train.max_epochs"], ["~train.max_epochs"]),
    (["~nothing"], ["~nothing"]),
    # what cannot be read
    *(([f"seed={value}"], ["seed"]) for value in ("", "1,2", "{a: 1}", "${nowhere}", "???")),
    *(([override], ["task"]) for override in ("task=null", "task=[toy,imdb]", "task=../task/toy", "++task=imdb", "task=toy=3")),
    *(([f"decode.beam={value}"], ["decode.beam"]) for value in ("[1", "${")),
    *(([override], [override.partition("=")[0]]) for override in ("optim.lr=${oc.env:NOT_THERE}", "optim.betas.9=3", "a b=3", "--cfg")),
    (["=3"], ["=3"]),
    (["seed"], ["'seed'"]),
    ([""], ["''"]),
    # other tasks
    (["task=multilabel", "mapping=entmax", "mapping.alpha=learned"], ["mapping.alpha=learned", "give a number"]),
    (["task=multilabel", "mapping=hardmax"], ["hardmax", "softmax"]),
    (["task=multilabel", "model=lstm_tiny"], ["'lstm'", "linear"]),
    (["task=multilabel", "data.setting=length", "data.value=0"], ["value=0"]),
    (["task=multilabel", "mapping=sparsehourglass", "task.tune.parameters.sparsehourglass.q=[-1]"], ["q=-1"]),
    (["task=multilabel", "mapping=sparsehourglass", "mapping.q=1", "task.tune.parameters.sparsehourglass.q=[1]"],
     ["mapping.q", "task.tune.parameters.sparsehourglass.q", "leave one of them out"]),
    (["task=multilabel", "mapping=sparsegen_lin", "mapping.lam=0", "task.tune.parameters={sparsegen_lin: {lam: [0]}}"],
     ["mapping.lam", "task.tune.parameters.sparsegen_lin.lam"]),
    (["task=multilabel", "optim.lr=0.1"], ["optim.lr=0.1 would change nothing", "task.fit.iterations"]),
    (["task=multilabel", "schedule=plateau", "train.max_epochs=2"], ["schedule=plateau, train.max_epochs=2"]),
    (["task=imdb", "data.path=my.csv"], ["data.path"]),
    (["task=translation", "data.path=FOLDER"], ["data.path"]),
    (["task=translation", "data.mirror=FOLDER"], ["data.mirror"]),
    (["task=translation", "mapping=continuous_softmax"], ["continuous_softmax", "density"]),
    (["task=snli", "mapping=continuous_softmax"], ["continuous_softmax", "density"]),
    (["task=snli", "model=lstm_opennmt"], ["model.name='lstm'", "snli_attentive"]),
    (["task=snli", "train.best_metric=bleu"], ["train.best_metric='bleu'", "task=snli", "allowed: accuracy, loss"]),
    (["task=imdb", "mapping=softmax", "model.discrete=softmax"], ["model.discrete", "continuous_"]),
    (["task=imdb", "mapping=continuous_sparsemax", "model.discrete=foo"], ["model.discrete='foo'", "softmax"]),
    (["task=imdb", "mapping=continuous_sparsemax", "model.rbf=33"], ["rbf=33"]),
    (["task=imdb", "mapping=continuous_sparsemax", "model.positions=left"], ["model.positions='left'", "right_edge"]),
    (["task=vqa", "model.discrete=foo"], ["foo", "softmax"]),
    (["task=vqa", "model.heads=3"], ["heads=3"]),
    (["task=vqa", "mapping=continuous_sparsemax", "mapping.quadrature=foo"], ["foo", "paper-code"]),
]  # fmt: skip


@pytest.mark.parametrize("overrides, said", WRONG, ids=lambda value: " ".join(value) if "=" in value[0] else "")
def test_a_wrong_override_is_refused_in_a_sentence(composed, overrides, said):
    message = refused(composed, ["task=toy", *overrides] if not overrides[0].startswith("task=") else overrides)
    assert [text for text in said if text not in message] == []
    assert "\n" not in message and "HYDRA" not in message and len(message) < 2000


def test_a_key_that_no_node_has_is_refused(composed):
    for node in ("data", "train", "optim", "model", "schedule", "encode", "decode", "task", "runtime", "profile"):
        assert f"{node}.foo is unknown" in refused(composed, ["task=toy", f"+{node}.foo=1"])


def test_names_of_ones_own_can_be_added_and_taken_away(composed):
    config = composed(["task=toy", "+mapping.at.cross={name: entmax}", "~mapping.at.cross"])
    assert config["mapping"]["at"] == {}
    grid = composed(["task=toy", "mapping=fusedmax", "mapping.grid={lam: [1, 2]}"])["mapping"]["grid"]
    assert grid["lam"] == [1, 2]
    tuned = composed(["task=multilabel", "~task.tune.parameters.sparsegen_lin"])["task"]["tune"]["parameters"]
    assert "sparsegen_lin" not in tuned


def test_a_gpu_that_is_not_there_is_refused_and_auto_takes_what_is(composed, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "torch finds no GPU" in refused(composed, ["task=toy", "runtime.device=cuda"])
    assert composed(["task=toy", "runtime.device=auto"])["runtime"]["device"] == "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert composed(["task=toy", "runtime.device=auto"])["runtime"]["device"] == "cuda"


def test_misspelt_experiments_and_profiles_name_the_nearest():
    with pytest.raises(compose.ConfigError, match=r"(?s)niculae_table2.*niculae2017_table2"):
        compose.experiment("niculae_table2", "demo")
    with pytest.raises(compose.ConfigError, match=r"'demmo'.*demo"):
        compose.experiment("niculae2017_table2", "demmo")


def test_an_option_without_a_declaration_is_named():
    @dataclass
    class Options:
        path: str = "x"

    with pytest.raises(TypeError, match=r"Options\.path must be declared with integer, number, flag, text"):
        read(Options, {}, "logger.mine")


# ---- values of every kind, in a configuration that is complete


def leaves(node: Mapping, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every key with its value, also those of whole nodes."""
    for key, value in node.items():
        yield (*path, key), value
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, key))


def value_at(config: dict, path: tuple[str, ...]) -> object:
    for key in path:
        config = config[key]
    return config


def changed(config: dict, path: tuple[str, ...], value: object) -> dict:
    config = copy.deepcopy(config)
    value_at(config, path[:-1])[path[-1]] = value
    return config


BELOW_ONE = [0, -1, 1.5, "many", None, True, NAN, INF, [2], {}]
SHARE = [1, -0.1, NAN, INF, True, "half", None]
# What must be refused: (task, key, values).
MUST = [
    *(("translation", f"decode.{key}", BELOW_ONE) for key in ("beam", "max_len_b", "batch_size")),
    *(("vqa", f"encode.{key}", BELOW_ONE) for key in ("max_tokens", "min_answer_count")),
    *(("vqa", f"model.{key}", BELOW_ONE) for key in ("layers", "hidden_dim", "heads", "ff_dim", "embed_dim", "basis_side")),
    *(("imdb", f"model.{key}", BELOW_ONE) for key in ("rbf", "embed_dim", "hidden_dim", "score_dim")),
    *(("toy", f"model.{key}", BELOW_ONE) for key in ("layers", "hidden_dim", "embed_dim")),
    *(("toy", f"train.{key}", BELOW_ONE) for key in ("max_epochs", "batch_size", "batch_size_valid", "update_freq", "processes")),
    *(("toy", f"runtime.{key}", BELOW_ONE) for key in ("threads", "workers")),
    *(("toy", f"data.limits.{split}", [0, -1, 2.5, "all", True, NAN, 1e20, [3]]) for split in ("train", "dev", "test")),
    *((task, "model.dropout", SHARE) for task in ("toy", "snli", "imdb", "vqa")),
    ("toy", "model.embed_dropout", SHARE),
    ("snli", "model.word_dropout", SHARE),
    *((task, "optim.label_smoothing", [1, -1, NAN, INF, True, None, "x"]) for task in TASKS),
    *((task, "optim.lr", [0, -1, NAN, INF, 1e20, True, None, "fast", [1]]) for task in TASKS),
    *((task, "optim.clip", [-1, NAN, INF, True, None]) for task in TASKS),
    *((task, "seed", [-1, 1e20, 1.0, True, None, NAN, "one", [1], 2**31]) for task in TASKS),
    *((task, "plugins", ["file.py", None, [3], [""], {}]) for task in TASKS),
    ("toy", "optim.betas", [[0.9], [0.9, 1], [0.9, -1], [NAN, 0.9], 0.9, None, [0.9, 0.9, 0.9]]),
    ("toy", "optim.eps", [0, -1, NAN, INF]),
    ("toy", "optim.weight_decay", [1, -1, NAN]),
    ("toy", "runtime.save_minutes", [0, -1, NAN, INF, 1e20, True, None]),
    ("toy", "runtime.data_workers", [-1, 1.0, True, NAN, 1e20, 10_000]),
    ("toy", "runtime.verbose", [1, 0, "yes", None]),
    ("toy", "model.mask_padding", [1, 0, "false", None]),
    ("toy", "decode.max_len_a", [-1, NAN, INF, None]),
    ("toy", "decode.len_penalty", [NAN, INF, 1e20, None, True]),
    ("toy", "decode.replace_unk", [1, "no", None]),
    ("toy", "train.max_tokens", [0, -1, True, NAN]),
    ("toy", "encode.vocab_size", [0, -1, True, 1e20, "all"]),
    ("toy", "task.scores", ["bleu", [], None, ["blue"]]),
    ("toy", "task.name", ["../../x", "", None, "a b", ["toy"], "a/b"]),
    ("toy", "task.deviations", ["one", [1], None]),
    ("snli", "task.keep_attention", [-3, None, "all"]),
    ("toy", "paths.outputs", ["", None, 3, ["a"]]),
    ("toy", "paths.data", ["", None, 3, ["a"]]),
    ("toy", "profile.name", ["big", None, 3]),
    ("toy", "schedule.warmup_updates", BELOW_ONE),
    ("vqa", "schedule.decay_epochs", [[0], ["x"], 10, None]),
    ("translation", "schedule.decay", [0, -1, 2, NAN]),
    ("snli", "model.l2", [-1, NAN, INF]),
    ("imdb", "model.ridge", [0, -1, NAN, None]),
    ("imdb", "model.widths", ["wide", [0], None]),
    ("vqa", "model.basis_variance", [0, -1, NAN]),
    ("multilabel", "data.sizes.train", [0, -1, None, "all"]),
    ("multilabel", "data.value", ["abc", None, NAN]),
    ("multilabel", "task.fit.iterations", BELOW_ONE),
    ("multilabel", "task.tune.penalties", [[], [0], [-1.0], [NAN], [INF], 1, None, ["x"]]),
    ("multilabel", "task.tune.thresholds", [[], [NAN], [2], [-1], None]),
    ("multilabel", "task.tune.folds", [1, 0, True, None, 1000]),
    ("toy", "mapping.lam", [-1, NAN, INF, True, None, "x", [1]]),
    ("toy", "mapping.at", ["cross", [1], 3]),
    ("toy", "mapping.grid", ["paper", [1], 3]),
    *(("toy", node, [None, 3, "word", [], True, "", 0]) for node in compose.NODES),
    *(("toy", f"{node}.name", [None, 3, "word!", [], {}, True]) for node in ("data", "model", "mapping", "optim", "schedule", "launcher")),
]  # fmt: skip


@pytest.mark.parametrize("task, key, values", MUST, ids=[f"{t}-{k}" for t, k, _ in MUST])
def test_what_must_be_refused_is(bases, task, key, values):
    for value in values:
        with pytest.raises(compose.ConfigError, match=key.rpartition(".")[2]):
            compose.completed(changed(bases[task], tuple(key.split(".")), value))


def test_all_mistakes_of_all_nodes_are_told_at_once(bases):
    config = bases["toy"]
    wrong = {"seed": -1, "optim.lr": INF, "optim.label_smoothing": NAN, "decode.beam": 0, "decode.max_len_b": -1, "train.batch_size": True,
             "train.precision": "fp8", "model.dropout": 1, "data.limits.dev": 0, "runtime.save_minutes": 0, "runtime.data_workers": -1,
             "paths.data": "", "schedule.warmup_updates": 0, "mapping.lam": -1, "mapping.gamma": 0, "encode.min_count": 0,
             "task.keep_attention": -1}  # fmt: skip
    for key, value in wrong.items():
        config = changed(config, tuple(key.split(".")), value)
    config["optim"]["foo"] = 1
    with pytest.raises(compose.ConfigError, match=r"optim\.foo") as caught:
        compose.completed(config)
    assert [key for key in wrong if key.rpartition(".")[2] + "=" not in str(caught.value)] == []


ANY = [INF, -INF, NAN, 1e20, -1, 0, -0.5, 0.5, True, False, None, "", "word", "1", [], [1], ["word"], {}, {"x": 1}]
PER_KEY = 5
# Keys of numbers that can be zero or below; all others must be positive.
ZERO = {
    "seed", "clip", "label_smoothing", "weight_decay", "betas", "data_workers", "keep_attention", "keep_predictions", "dropout",
    "embed_dropout", "word_dropout", "max_len_a", "len_penalty", "l2", "embed_range", "start_variance", "warmup_epochs", "restarts",
    "tolerance", "split_seed", "lam", "q", "value", "thresholds", "dev_share", "coverage_penalty", "retries", "c",
}  # fmt: skip
NEGATIVE = {"len_penalty", "lam", "value"}
FREE = {"device", "devices"}  # settled by the machine; a number becomes a list


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from numbers(one)


def impossible(path: tuple[str, ...], before: object, after: object) -> str:
    """Why an accepted value should not have been. Not by the options' own ranges: it must be of the kind of the page's value,
    finite, and positive but for the keys of ZERO and NEGATIVE."""
    kinds = {type(before), type(after)}
    if len(kinds) == 2 and type(None) not in kinds and kinds != {int, float}:
        return f"a {type(before).__name__} became a {type(after).__name__}"
    if isinstance(after, str) and not after.strip():
        return "is no text"
    for n in numbers(after):
        if not abs(n) <= 1e15:
            return "is no number to compute with"
        if not {*path} & NEGATIVE and n < 0:
            return "is negative"
        if not {*path} & ZERO and n == 0:
            return "is zero"
    return ""


def test_every_key_takes_what_is_possible_and_refuses_the_rest(bases):
    """No value of any key ends in a traceback or is taken in silence: it is possible, or refused by its name."""
    draw, count, wrong = random.Random(11), 0, []
    for task, base in bases.items():
        for path, before in leaves(base):
            for value in draw.sample(ANY, PER_KEY):
                count += 1
                shown = f"task={task} {'.'.join(path)}={value}"
                try:
                    after = value_at(compose.completed(changed(base, path, value)), path)
                except compose.ConfigError as error:
                    if path[-1] not in str(error):
                        wrong.append(f"{shown}: the refusal does not name the key: {error}")
                except Exception as error:
                    wrong.append(f"{shown}: {type(error).__name__}: {str(error)[:200]}")
                else:
                    if value == {} and isinstance(before, Mapping):
                        continue  # nothing set: the defaults
                    if path[-1] not in FREE and (why := impossible(path, before, after)):
                        wrong.append(f"{shown} was accepted as {after!r}: {why}")
    assert count > 2000
    assert wrong == [], f"{len(wrong)} of {count}\n" + "\n".join(wrong)
