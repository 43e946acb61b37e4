"""No value and no override of any key ends in a traceback or is taken in silence: it is possible, or refused by its name.

The oracle is not the options' own ranges: what is accepted must be of the kind of the page's value, finite, and positive,
but for the keys that are listed here.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Mapping

import pytest

from tasks.config import compose

TASKS = {
    "toy": ["mapping=fusedmax"],
    "translation": ["mapping=sparsegen_lin", "optim=sgd", "schedule=latched_halving"],
    "summarization": ["+mapping.at.cross={name: entmax}", "logger=wandb"],
    "snli": ["data=toy_entailment"],
    "imdb": ["mapping=continuous_sparsemax", "model.discrete=softmax"],
    "vqa": ["schedule=epoch_steps"],
    "multilabel": ["mapping=sparsehourglass"],
}
INF, NAN = math.inf, math.nan
HUGE = [INF, -INF, NAN, 1e20, 10**20, 10**400, "x" * 10_000]
NASTY = [
    *HUGE,
    -1,
    0,
    -0.5,
    0.5,
    True,
    False,
    None,
    "",
    " ",
    "word",
    "1",
    "a\nb",
    "???",
    [],
    [1],
    [None],
    ["word"],
    [[]],
    {},
    {"x": 1},
]
PER_KEY = 5

# Keys of numbers that can be zero or below; all others must be positive.
ZERO = {
    "seed", "clip", "label_smoothing", "weight_decay", "betas", "data_workers", "keep_attention", "keep_predictions", "dropout",
    "embed_dropout", "word_dropout", "max_len_a", "len_penalty", "l2", "embed_range", "start_variance", "warmup_epochs", "restarts",
    "tolerance", "split_seed", "lam", "q", "value", "thresholds", "dev_share", "coverage_penalty", "retries", "c",
}  # fmt: skip
NEGATIVE = {"len_penalty", "lam", "value"}
FREE = {"device", "devices"}  # settled by the machine; a number becomes a list


@pytest.fixture(scope="module")
def bases(composed) -> dict[str, dict]:
    return {task: composed([f"task={task}", "runtime.device=cpu", *more]) for task, more in TASKS.items()}


def leaves(node: Mapping, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every key with its value, also those of whole nodes."""
    for key, value in node.items():
        yield (*path, key), value
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, key))


def changed(config: dict, path: tuple[str, ...], value: object) -> dict:
    config = copy.deepcopy(config)
    node = config
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return config


def value_at(config: dict, path: tuple[str, ...]) -> object:
    for key in path:
        config = config[key]
    return config


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from numbers(one)


def impossible(path: tuple[str, ...], before: object, after: object) -> str:
    """Why an accepted value should not have been."""
    kinds = {type(before), type(after)}
    if len(kinds) == 2 and type(None) not in kinds and kinds != {int, float}:
        return f"a {type(before).__name__} became a {type(after).__name__}"
    if isinstance(after, str) and (not after.strip() or len(after) > 5000 or "\n" in after or after == "???"):
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
    draw, count, wrong = random.Random(11), 0, []
    for task, base in bases.items():
        for path, before in leaves(base):
            for value in draw.sample(NASTY, PER_KEY):
                count += 1
                shown = f"task={task} {'.'.join(path)}={str(value)[:30] if value != 10**400 else '10**400'}"
                try:
                    after = value_at(compose.completed(changed(base, path, value)), path)
                except compose.ConfigError as error:
                    if path[-1] not in str(error):
                        wrong.append(f"{shown}: the refusal does not name the key: {error}")
                    if len(str(error)) > 5000:
                        wrong.append(f"{shown}: the refusal has {len(str(error))} characters")
                except Exception as error:
                    wrong.append(f"{shown}: {type(error).__name__}: {str(error)[:200]}")
                else:
                    if value == {} and isinstance(before, Mapping):
                        continue  # nothing set: the defaults
                    if path[-1] not in FREE and (why := impossible(path, before, after)):
                        wrong.append(f"{shown} was accepted as {after!r}: {why}")
    assert count > 2000
    assert wrong == [], f"{len(wrong)} of {count}\n" + "\n".join(wrong)


BELOW_ONE = [0, -1, 1.5, "many", None, True, NAN, INF, [2], {}]
# What must be refused: (task, key, values).
MUST = [
    *(("translation", f"decode.{key}", BELOW_ONE) for key in ("beam", "max_len_b", "batch_size")),
    *(("vqa", key, BELOW_ONE) for key in ("decode.batch_size", "encode.max_tokens", "encode.min_answer_count", "model.layers",
      "model.hidden_dim", "model.heads", "model.ff_dim", "model.embed_dim", "model.basis_side")),
    *(("imdb", f"model.{key}", BELOW_ONE) for key in ("rbf", "embed_dim", "hidden_dim", "score_dim")),
    *(("toy", f"model.{key}", BELOW_ONE) for key in ("layers", "hidden_dim", "embed_dim")),
    *(("toy", f"train.{key}", BELOW_ONE) for key in ("max_epochs", "batch_size", "batch_size_valid", "update_freq", "processes")),
    *(("toy", f"runtime.{key}", BELOW_ONE) for key in ("threads", "workers")),
    *(("toy", f"data.limits.{s}", [0, -1, 2.5, "all", True, NAN, 1e20, [3]]) for s in ("train", "dev", "test")),
    *((t, f"model.{key}", [1, -0.1, NAN, INF, True, "half", None]) for t, key in (("toy", "dropout"), ("toy", "embed_dropout"),
      ("snli", "dropout"), ("snli", "word_dropout"), ("imdb", "dropout"), ("vqa", "dropout"))),
    *((t, "optim.label_smoothing", [1, -1, NAN, INF, True, None, "x"]) for t in TASKS),
    *((t, "optim.lr", [0, -1, NAN, INF, 1e20, True, None, "fast", [1]]) for t in TASKS),
    *((t, "optim.clip", [-1, NAN, INF, True, None]) for t in TASKS),
    *((t, "seed", [-1, 1e20, 10**20, 1.0, True, None, NAN, "one", [1], 2**31]) for t in TASKS),
    *((t, "plugins", ["file.py", None, [3], [""], {}]) for t in TASKS),
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
    ("toy", "task.name", ["../../x", "", None, "a b", "x" * 1000, ["toy"], "a/b"]),
    ("toy", "task.deviations", ["one", [1], None]),
    ("toy", "paths.outputs", ["", None, 3, ["a"], "a\nb", "x" * 10_000]),
    ("toy", "profile.name", ["big", None, 3]),
    ("toy", "schedule.warmup_updates", BELOW_ONE),
    ("vqa", "schedule.decay_epochs", [[0], ["x"], 10, None]),
    ("translation", "schedule.decay", [0, -1, 2, NAN]),
    ("snli", "model.l2", [-1, NAN, INF]),
    ("multilabel", "task.fit.iterations", BELOW_ONE),
    ("multilabel", "task.tune.penalties", [[], [0], [NAN], [INF], 1, None, ["x"]]),
    ("multilabel", "task.tune.thresholds", [[], [NAN], [2], [-1], None]),
    ("multilabel", "task.tune.folds", [1, 0, True, None, 1000]),
    ("toy", "mapping.lam", [-1, NAN, INF, True, None, "x", [1]]),
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
    wrong = {"seed": 1e20, "optim.lr": INF, "optim.label_smoothing": NAN, "decode.beam": 0, "decode.max_len_b": -1, "train.batch_size": True,
             "model.dropout": 1, "data.limits.dev": 0, "runtime.save_minutes": 0, "runtime.data_workers": -1, "paths.data": "",
             "schedule.warmup_updates": 0, "mapping.lam": NAN, "encode.min_count": 0, "task.keep_attention": -1}  # fmt: skip
    for key, value in wrong.items():
        config = changed(config, tuple(key.split(".")), value)
    with pytest.raises(compose.ConfigError) as caught:
        compose.completed(config)
    assert [key for key in wrong if key.rpartition(".")[2] + "=" not in str(caught.value)] == []


# ---- the command line

LINES = [
    (["~seed"], "~seed"), (["~train"], "~train"), (["~train.max_epochs"], "~train.max_epochs"), (["~optim"], "~optim"),
    (["~task"], "~task"), (["~logger"], "~logger"), (["~mapping.gamma"], "~mapping.gamma"), (["~data.limits"], "~data.limits"),
    (["~nothing"], "~nothing"), (["~mapping.at.cross"], "mapping.at.cross"),
    (["+seed=3"], "seed"), (["+train={max_epoch: 3}"], "max_epoch"), (["+task=toy"], "task"), (["++task=imdb"], "task"),
    (["+model.size=3"], "model.size"), (["+a.b.c=3"], "a is unknown"), (["+seed.x=3"], "seed"),
    (["train=null"], "train"), (["train=word"], "train"), (["train=[1]"], "train"), (["runtime=''"], "runtime"),
    (["seed=null"], "seed"), (["seed=nan"], "seed"), (["seed=1e20"], "seed"), (["seed="], "seed"), (["seed=1,2"], "seed"),
    (["seed={a: 1}"], "seed"), (["seed=" + "9" * 6000], "seed"), (["seed=${nowhere}"], "seed"), (["seed=???"], "seed"),
    (["optim.lr=inf"], "optim.lr"), (["optim.lr=1e999"], "optim.lr"), (["optim.lr=${oc.env:NOT_THERE}"], "optim.lr"),
    (["optim.betas.9=3"], "optim.betas.9"), (["train.max_epoch=3"], "'max_epochs'"), (["tasks=toy"], "'task'"),
    (["task=null"], "task"), (["task=[toy,imdb]"], "task"), (["task=../task/toy"], "task"), (["task=toi"], "'toy'"),
    (["mapping=3"], "mapping"), (["mapping=Softmax"], "'softmax'"), (["mapping.name=[softmax]"], "mapping.name"),
    (["mapping.at={cross: null}"], "mapping.at"), (["+mapping.at={cross: null}"], "mapping.at"), (["+mapping.at.cross.grid=3"], "mapping.at.cross"),
    (["+mapping.grid.name=[softmax]"], "mapping.grid"), (["mapping@place=softmax"], "mapping@place"), (["setting=none"], "setting"),
    (["profile=paper"], "profile=paper"), (["hydra.nothing=3"], "hydra.nothing"), (["data=nothing"], "data='nothing'"),
    (["=3"], "=3"), ([""], "''"), (["seed"], "'seed'"), (["decode.beam=[1"], "decode.beam"), (["a b=3"], "a b"),
    (["decode.beam=${"], "decode.beam"), (["task=toy=3"], "task"), (["--cfg"], "--cfg"),
]  # fmt: skip


@pytest.mark.parametrize("overrides, said", LINES, ids=[o[0][:30] for o, _ in LINES])
def test_a_wrong_override_is_refused_in_a_sentence(composed, overrides, said):
    with pytest.raises(compose.ConfigError) as caught:
        composed(["task=toy", *overrides])
    message = str(caught.value)
    assert said in message and "\n" not in message and "HYDRA" not in message and len(message) < 2000


def test_names_of_ones_own_can_be_added_and_taken_away(composed):
    config = composed(["task=toy", "+mapping.at.cross={name: entmax}", "~mapping.at.cross"])
    assert config["mapping"]["at"] == {}
    grid = composed(["task=toy", "mapping=fusedmax", "mapping.grid={lam: [1, 2]}"])["mapping"]["grid"]
    assert grid["lam"] == [1, 2]
    assert (
        "sparsegen_lin"
        not in composed(["task=multilabel", "~task.tune.parameters.sparsegen_lin"])["task"]["tune"]["parameters"]
    )
