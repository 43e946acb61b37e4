"""Every page of the configuration tree composes and is accepted; what is misspelt is answered clearly."""

from __future__ import annotations

import itertools

import pytest
import yaml
from omegaconf import OmegaConf

import sparse_attention as sa
from sparse_attention.repro import cell as cells
from sparse_attention.repro import plan as plans
from sparse_attention.repro.protocol import Prepared
from sparse_attention.repro.store import Store
from tasks import compose

CONFIGS = compose.CONFIGS


def pages(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def page(group: str, name: str) -> dict:
    return OmegaConf.to_container(OmegaConf.load(CONFIGS / group / f"{name}.yaml"))


ALL_MAPPINGS = [name for name in pages("mapping") if name != "custom"]
MAPPINGS = [name for name in ALL_MAPPINGS if sa.spec(name).kind == "simplex"]
SETTINGS = [name.rsplit("_", 1) for name in pages("setting")]
EXPERIMENTS = [(name, profile) for name in pages("experiment") for profile in page("experiment", name)["profiles"]]


def overrides_of_tasks() -> dict[str, list[str]]:
    """Task -> the overrides with which an experiment runs it: some tasks have a model of their own."""
    columns = [c for name in pages("experiment") for c in page("experiment", name)["columns"].values()]
    return {o.removeprefix("task="): c["overrides"] for c in columns for o in c["overrides"] if o.startswith("task=")}


OF_TASK = overrides_of_tasks()
PAIRS = ("toy", "translation", "summarization")  # tasks of sentence pairs: generated ones can take their place
TEXT_EXPERIMENTS = [
    name for name in pages("experiment")
    if all(f"task={task}" not in c["overrides"] for c in page("experiment", name)["columns"].values() for task in set(OF_TASK) - set(PAIRS))
]  # fmt: skip


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_mapping_composes_and_is_accepted(composed, mapping):
    config = composed(["task=toy", f"mapping={mapping}"])
    parameters = {k: v for k, v in config["mapping"].items() if k != "name"}
    assert config["mapping"]["name"] == mapping
    made = sa.make(mapping, **parameters)
    assert made.spec.kind == "simplex"


def test_every_mapping_without_further_inputs_has_its_page():
    usable = {name for name in sa.names(kind="simplex") if not any(p.required for p in sa.spec(name).params)}
    assert len(usable) > 10
    assert usable - set(MAPPINGS) == set()


@pytest.mark.parametrize("mapping", ALL_MAPPINGS)
def test_mapping_page_names_the_registrys_parameters(mapping):
    """With the registry's defaults, or a value of the paper that the page's comment states."""
    text = (CONFIGS / "mapping" / f"{mapping}.yaml").read_text(encoding="utf-8")
    given = dict(page("mapping", mapping)["mapping"])
    spec = sa.spec(given.pop("name"))
    if spec.kind == "continuous":  # how their integrals are computed is no question of an experiment
        assert set(given) <= set(spec.defaults)
    else:
        assert set(given) == set(spec.defaults)
    comment = " ".join(line for line in text.splitlines() if line.startswith("#"))
    for name, value in given.items():
        assert value == spec.defaults[name] or str(value) in comment, (
            f"{name}={value} is neither the default nor explained"
        )


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_every_point_of_a_mappings_grid_is_possible(composed, mapping):
    grid = page("mapping", mapping).get("grid") or {}
    for point in plans.points(grid):
        composed(["task=toy", f"mapping={mapping}", *(f"{key}={value}" for key, value in point)])


@pytest.mark.parametrize("task, profile", SETTINGS, ids=["-".join(s) for s in SETTINGS])
def test_task_and_profile_compose(composed, task, profile):
    overrides = [o for o in OF_TASK.get(task, []) if o.startswith(("model=", "optim="))]
    config = composed([f"task={task}", f"profile={profile}", *overrides])
    assert (config["task"]["name"], config["profile"]["name"]) == (task, profile)
    setting = page("setting", f"{task}_{profile}")
    for group in ("model", "optim", "train"):
        for key, value in setting.get(group, {}).items():
            assert config[group][key] == value, f"setting {group}.{key} did not win over the presets"
    assert config["task"]["data"]["name"] != "???"


@pytest.mark.parametrize("task", pages("task"))
def test_every_task_has_a_demo(task):
    assert f"{task}_demo" in pages("setting")


def test_the_command_line_wins_over_the_setting(composed):
    config = composed(["task=translation", "profile=demo", "model.hidden_dim=7", "mapping=fusedmax", "mapping.lam=0.3"])
    assert config["model"]["hidden_dim"] == 7 and config["mapping"] == {"name": "fusedmax", "lam": 0.3, "gamma": 1.0}


@pytest.mark.parametrize("logger", pages("logger"))
def test_logger_composes(composed, logger):
    assert composed(["task=toy", f"logger={logger}"])["logger"]["name"] == logger


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda p: str(p.relative_to(CONFIGS)))
def test_every_page_begins_with_what_it_is(path):
    first = path.read_text(encoding="utf-8").splitlines()[:2]
    assert any(line.startswith("# ") and not line.startswith("# @package") for line in first)
    yaml.safe_load(path.read_text(encoding="utf-8"))


# ---- experiments


def prepare_nothing(config) -> cells.Cell:
    prepared = Prepared("sha", {"name": config["task"]["data"]["name"]})
    return cells.Cell(config, prepared, cells.identity(config, repr(sorted(config["task"]["data"].items()))))


@pytest.mark.parametrize("name, profile", EXPERIMENTS, ids=["-".join(e) for e in EXPERIMENTS])
def test_experiment_plans(name, profile):
    experiment = compose.experiment(name, profile)
    with compose.composer() as composed:
        plan = plans.make(experiment, composed, prepare_nothing)
    assert not experiment["comparable"] or (profile == "paper" and experiment.get("published"))
    if name in ("niculae2017_table2", "laha2018_table2") and profile == "paper":
        assert experiment["comparable"]
    for r, c in itertools.product(range(len(experiment["rows"])), range(len(experiment["columns"]))):
        slots = plan.at(r, c)
        assert {s.seed for s in slots} == set(experiment["seeds"]), f"row {r}, column {c}"
        assert {s.cell.config["profile"]["name"] for s in slots} == {profile}
        config = slots[0].cell.config
        for spec in experiment["columns"][c]["show"]:
            assert measured(spec["metric"], config), f"{spec['metric']} is not measured by {config['task']['name']}"
        assert experiment["columns"][c]["select"]["metric"] == f"dev/{config['train']['best_metric']}"


def measured(metric: str, config) -> bool:
    """Whether a cell of this configuration will have the metric."""
    if config["task"]["name"] not in PAIRS:
        return "/" in metric  # measured by the tests of those tasks
    split, name = metric.split("/")
    families = {
        "rouge_f1": ("rouge1_f", "rouge2_f", "rougeL_f"),
        "rouge_recall75": ("rouge1_r", "rouge2_r", "rougeL_r"),
    }
    known = {s for family in config["task"].get("scores", ()) for s in families.get(family, (family,))}
    known |= {"attention_zeros", "attention_support", "unknown_share"}
    if split == "dev":
        return name in {"loss", "ppl", "accuracy", "attention_zeros", "attention_support"}
    return split in {"test", *(t["name"] for t in config["task"].get("extra_tests", ()))} and name in known


def toy_overrides(tiny) -> list[str]:
    """Generated pairs in the place of an experiment's text; the columns stay themselves."""
    return [o for o in tiny if not o.startswith(("task=", "profile=", "task.data."))] + [
        "task.data.name=toy", "task.data.fallback=null", "task.data.limits={train: 48, dev: 16, test: 8}", "task.encode.tokenizer=none",
        "task.encode.subword=none", "task.encode.vocab_size=null", "task.encode.min_count=1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["demo", *(pytest.param(n, marks=pytest.mark.slow) for n in TEXT_EXPERIMENTS if n != "demo")]
)
def test_experiment_runs_at_toy_size(name, tiny, tmp_path, capsys, isolated, monkeypatch):
    """Plan, fork server, cells, table, report; and again, when nothing is left to do."""
    from tasks import reproduce

    monkeypatch.setenv("PYTHONPATH", str(CONFIGS.parent))
    outputs = [f"paths.outputs={tmp_path}", f"paths.data={isolated / 'data'}", "runtime.workers=1"]
    assert reproduce.main([name], ["profile=demo", *toy_overrides(tiny), *outputs]) == 0
    first = capsys.readouterr()
    experiment = compose.experiment(name, "demo")
    shown = (tmp_path / "tables" / f"{name}_demo.txt").read_text(encoding="utf-8")
    assert experiment["title"] in shown and "not comparable" in shown
    body = [
        line for line in shown.splitlines() if line.strip().startswith(tuple(r["label"] for r in experiment["rows"]))
    ]
    assert len(body) == len(experiment["rows"]) * len(experiment["columns"])
    assert not [line for line in body if "failed" in line or "missing" in line or "None" in line]
    for suffix in (".md", ".csv", ".tex"):
        assert (tmp_path / "tables" / f"{name}_demo{suffix}").stat().st_size > 200
    assert " 0 failed" in first.out
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "cells").rglob("*") if p.is_file()}
    assert reproduce.main([name], ["profile=demo", *toy_overrides(tiny), *outputs]) == 0
    assert "0 cells run" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cells").rglob("*") if p.is_file()} == before


PRESETS = [
    (model, optim) for model in pages("model") if page("model", model).get("name") == "sa_seq2seq" for optim in pages("optim")
]  # fmt: skip


@pytest.mark.parametrize("model, optim", PRESETS)
def test_every_preset_trains(prepared_cell, tiny, tmp_path, model, optim):
    """The toy setting brings an optimiser of its own; the preset's values are put back on top of it."""
    preset = {k: v for k, v in (page("optim", "sgd_opennmt") | page("optim", optim)).items() if k != "defaults"}
    own = page("model", model)
    sizes = {o.split("=")[0] for o in tiny}
    values = [f"optim.{k}={v}" for k, v in preset.items()]
    values += [f"model.{k}={v}" for k, v in own.items() if k != "name" and f"model.{k}" not in sizes]
    cell = prepared_cell([*tiny, f"model={model}", f"optim={optim}", *values])
    assert cell.config["optim"] == preset
    outcome = cells.run(cell, Store(tmp_path))
    assert outcome.state == "done", outcome.error


# ---- what is wrong is said


@pytest.mark.parametrize(
    "overrides, said",
    [
        (["mapping=fusedmax", "mapping.lam=-1"], ["lam=-1", "lam >= 0"]),
        (["mapping=pnormmax", "mapping.p=3"], ["p=3", "1 < p <= 2"]),
        (["mapping=sparsegen_lin", "mapping.lam=1"], ["lam=1", "lam < 1"]),
        (["mapping=entmax", "mapping.alpha=high"], ["alpha='high'", "not a number"]),
        (["mapping=custom", "mapping.name=sparsmax"], ["sparsmax", "sparsemax"]),
        (["mapping=softmax", "+mapping.gama=2"], ["gama", "gamma"]),
        (["mapping=oscarmax", "mapping.mode=printed"], ["printed", "exact, paper"]),
        (["train.precision=fp8"], ["train.precision='fp8'", "fp32, fp16, bf16"]),
        (["runtime.device=tpu"], ["runtime.device='tpu'", "cpu, cuda"]),
        (["train.max_epochs=0"], ["train.max_epochs=0", "at least 1"]),
        (["train.batch_size=many"], ["train.batch_size='many'"]),
        (["seed=-1"], ["seed=-1"]),
        (["optim.lr=0"], ["optim.lr=0", "positive"]),
        (["optim.lr=fast"], ["optim.lr='fast'"]),
        (["optim.schedule=cosine"], ["optim.schedule='cosine'", "latched_halving, inverse_sqrt, mcan_steps, fixed"]),
        (["optim.name=rmsprop"], ["optim.name='rmsprop'", "sgd", "adam"]),
        (["model.attention=cosine"], ["model.attention='cosine'", "general", "dot", "additive"]),
        (["train.best_metric=acuracy"], ["train.best_metric='acuracy'", "accuracy"]),
        (["task.scores=[blue]"], ["blue", "bleu"]),
        (["plugins=[nowhere.py]"], ["nowhere.py"]),
    ],
    ids=lambda v: " ".join(v) if "=" in str(v[0]) else "",
)  # fmt: skip
def test_a_wrong_value_is_named_with_what_is_allowed(composed, overrides, said):
    """Before any data is read: `compose` alone finds it."""
    with pytest.raises(ValueError) as caught:
        composed(["task=toy", *overrides])
    for text in said:
        assert text in str(caught.value)


SNLI = ["task=snli", "model=snli_attentive", "optim=adam"]
IMDB = ["task=imdb", "model=imdb_bilstm", "optim=adam", "mapping=continuous_sparsemax"]
VQA = ["task=vqa", "model=mcan_small", "optim=adam"]
MULTILABEL = ["task=multilabel", "model=linear", "mapping=sparsehourglass"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["task=snli"], ["model=snli_attentive"]), (["task=vqa"], ["model=mcan_small"]),
        ([*SNLI, "mapping=continuous_softmax"], ["continuous_softmax", "simplex"]), ([*SNLI, "model.l2=-1"], ["model.l2=-1"]),
        ([*SNLI, "train.best_metric=bleu"], ["bleu", "accuracy, loss"]), ([*SNLI, "task.keep_attention=-3"], ["keep_attention=-3"]),
        ([*IMDB, "model.discrete=foo"], ["model.discrete='foo'", "softmax"]), ([*IMDB, "model.rbf=33"], ["model.rbf=33"]),
        ([*IMDB, "model.rbf=-4"], ["model.rbf=-4"]), ([*IMDB, "model.widths=wide"], ["model.widths=wide"]),
        ([*IMDB, "model.positions=left"], ["model.positions='left'", "right_edge"]), ([*IMDB, "model.ridge=0"], ["model.ridge=0"]),
        ([*IMDB[:-1], "model.discrete=softmax"], ["mapping=continuous_*"]),
        ([*VQA, "model.reduction=foo"], ["foo", "continuous_softmax"]), ([*VQA, "model.heads=3"], ["heads=3"]),
        ([*VQA, "mapping=continuous_softmax"], ["model.reduction"]), ([*VQA, "model.reduction=continuous_sparsemax", "model.quadrature=foo"], ["foo", "paper-code"]),
        ([*VQA, "model.layers=0"], ["layers=0"]), ([*VQA, "task.encode.max_tokens=0"], ["max_tokens=0"]),
        ([*VQA, "+task.encode.foo=1"], ["task.encode.foo"]), ([*VQA, "model.reduction=continuous_sparsemax", "model.basis_variance=-1"], ["-1"]),
        ([*MULTILABEL, "task.data.setting=length", "task.data.value=0"], ["task.data.value=0"]),
        ([*MULTILABEL, "task.data.sizes.train=0"], ["sizes.train=0"]), ([*MULTILABEL, "task.tune.penalties=[-1.0]"], ["-1.0", "positive"]),
        ([*MULTILABEL, "task.tune.penalties=[abc]"], ["abc", "numbers"]), ([*MULTILABEL, "task.tune.folds=1"], ["folds=1"]),
        ([*MULTILABEL, "+task.data.foo=1"], ["task.data.foo"]), ([*MULTILABEL, "task.data.value=abc"], ["task.data.value='abc'"]),
        ([*MULTILABEL, "task.tune.parameters.sparsehourglass.q=[-1]"], ["q=-1"]),
        ([*MULTILABEL[:-1], "mapping=hardmax"], ["hardmax", "softmax"]),
    ],
    ids=lambda v: " ".join(v[-2:]) if "=" in str(v[0]) else "",
)  # fmt: skip
def test_a_wrong_value_of_a_task_is_named(composed, overrides, said):
    with pytest.raises(compose.ConfigError) as caught:
        composed(overrides)
    for text in said:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["multilabel_figures.py", "laha2018_figure5", "seeds=abc"], "seeds=abc must be whole numbers"),
        (["multilabel_figures.py", "add=nope"], "nope"),
        (["vqa_figures.py", "profile=xyz"], "no profile 'xyz'"),
        (["vqa_figures.py", "--count", "0"], "--count 0"),
        (["reproduce.py", "demo", "--cfg"], "scripts/train.py"),
        (["extract_features.py", "--path", "/nowhere", "--check"], "there is no feature store"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)  # fmt: skip
def test_the_other_commands_refuse_in_a_sentence(script, command, said):
    done = script(*command)
    assert done.returncode in (1, 2) and said in done.stderr and "Traceback" not in done.stderr


def test_all_mistakes_are_collected(composed):
    with pytest.raises(compose.ConfigError) as caught:
        composed(
            ["task=toy", "mapping=fusedmax", "mapping.lam=-1", "mapping.gamma=0", "seed=-1", "train.precision=fp8"]
        )
    for text in ("lam=-1", "gamma=0", "seed=-1", "fp8"):
        assert text in str(caught.value)


def test_misspelt_keys_and_choices(composed):
    with pytest.raises(Exception, match="max_epoch"):
        composed(["task=toy", "train.max_epoch=3"])
    with pytest.raises(Exception, match=r"(?s)fusedmx.*fusedmax"):
        composed(["task=toy", "mapping=fusedmx"])
    with pytest.raises(compose.ConfigError, match=r"(?s)niculae_table2.*niculae2017_table2"):
        compose.experiment("niculae_table2", "demo")
    with pytest.raises(compose.ConfigError, match=r"'demmo'.*demo"):
        compose.experiment("niculae2017_table2", "demmo")


def test_fairseq_does_not_get_into_the_tree(composed):
    """fairseq registers ConfigStore nodes named like pages of ours; composing after its import must give the same."""
    before = composed(["task=translation", "optim=adam"])
    import tasks.fairseq_plugin  # noqa: F401

    assert composed(["task=translation", "optim=adam"]) == before
