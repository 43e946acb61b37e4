"""Every page of the configuration tree composes and is accepted, and what it says holds; experiments plan and run."""

import dataclasses
import importlib
import itertools
import json
import os
import re
import sys
from glob import escape
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

import sparse_attention as sa
from repro import identity
from repro import plan as plans
from repro.protocol import REGISTERED, Prepared, TestSet
from repro.results import archive
from repro.store import Store
from tasks import data
from tasks.commands import records
from tasks.config import compose, models, nodes, overrides
from tasks.config.overrides import merged
from tasks.config.request import REPRODUCE, Request
from tasks.config.schedules import SCHEDULES

CONFIGS = compose.CONFIGS
pages = compose.names_in


def page(group: str, name: str) -> dict:
    """A page with the pages it begins from, not yet checked or resolved."""
    return OmegaConf.to_container(merged(f"{group}/{name}" if group else name, []))


MAPPINGS = [name for name in pages("mapping") if name != "custom"]
SETTINGS = [name.rsplit("_", 1) for name in pages("setting")]
EXPERIMENTS = [(name, p) for name in pages("experiment") for p in compose.page("experiment", name)["profiles"]]
IDENTITIES = Path(__file__).parent / "identities.json"  # of our experiments; RECORD_IDENTITIES=1 writes it, with -n 0
ARCHITECTURES = {name: f for f in models.FAMILIES for name in models.names(f)}


def yaml_of(group: str, name: str) -> dict:
    return yaml.safe_load((CONFIGS / group / f"{name}.yaml").read_text(encoding="utf-8"))


def test_a_page_is_the_callers_own():
    assert all(compose.page("claims", "laha2018").pop("claims") for _ in "ab")


def fields(cls: type) -> set[str]:
    return {f.name for f in dataclasses.fields(cls)}


OF_PAGE = {
    "model": lambda name: models.architecture(ARCHITECTURES[name], name).Options,
    "data": data.set_options,
    "schedule": lambda name: SCHEDULES[name].Options,
    **{group: classes.__getitem__ for group, classes in nodes.NAMED.items()},
}


def options_of_pages():
    """(page, its keys, the options of the class that reads it)."""
    for group, options_of in OF_PAGE.items():
        for name in pages(group):
            found = page(group, name)[group]
            yield f"{group}/{name}", set(found) - {"name"}, fields(options_of(found["name"]))
    for name in pages("task"):
        found = page("task", name)
        family = models.part(found["task"]["family"], "options")
        assert set(found) == {"task", "encode", "decode"} and found["task"]["name"] == name
        for node, cls in compose.OF_FAMILY.items():
            yield f"task/{name}: {node}", set(found[node]) - {"name", "family"}, fields(getattr(family, cls))
    main = page("", "main")
    for node, cls in nodes.SINGLE.items():
        yield f"main: {node}", set(main[node]), fields(cls)


def test_a_page_has_every_option_and_no_other(composed):
    found = list(options_of_pages())
    assert len(found) > 100 and [(where, keys ^ options) for where, keys, options in found if keys != options] == []
    assert fields(nodes.Top) <= set(page("", "main"))
    assert set(composed()) == {*compose.NODES, *compose.TOP}
    for setting in pages("setting"):  # sets no key of what can be replaced; of a replaced optimiser, they are left out
        own = yaml_of("setting", setting)
        assert set(own) <= {"defaults", "data", "encode", "decode", "optim", "train", "task"}, setting
        assert set(own.get("task", {})) <= {"deviations"} and set(own.get("data", {})) <= {"limits"}, setting


def test_a_mappings_page_is_the_registrys(composed, subtests):
    """All parameters, with the registry's defaults or a value of the paper that the comment states; a possible grid."""
    assert set(sa.names()) == set(MAPPINGS)
    for mapping in MAPPINGS:
        with subtests.test(mapping):
            lines = (CONFIGS / "mapping" / f"{mapping}.yaml").read_text(encoding="utf-8").splitlines()
            comment = "\n".join(line for line in lines if line.startswith("#"))
            found, spec = page("mapping", mapping)["mapping"], sa.spec(mapping)
            given = models.parameters(found)
            assert given.keys() == spec.defaults.keys(), "the file has every parameter"
            assert found.get("at") == {} and "grid" in found, "add `at: {}` and `grid: {}`"
            assert all(value == spec.defaults[name] or str(value) in comment for name, value in given.items())
            for point in plans.points(found["grid"]):
                spec.check({**given, **dict(point)})
            takes = [["task=toy"]] if spec.kind == "simplex" and spec.domain == "real" else []
            if spec.over == "density":
                takes = [["task=imdb", "model.discrete=softmax"], ["task=vqa", "model.discrete=softmax"]]
            for task in takes:
                assert composed([*task, f"mapping={mapping}"])["mapping"]["name"] == mapping


def test_a_node_follows_what_the_others_are(composed):
    """One vocabulary of both sides shares embeddings; an optimiser and a schedule have their own keys; data have the seed."""
    for model in ("transformer_small", "lstm_demo"):
        found = (composed([f"task={task}", f"model={model}"])["model"] for task in ("toy", "translation"))
        assert [node["share_embeddings"] for node in found] == [False, True]
    small, large = (composed(["task=vqa", "data=vqa2", f"model={m}"])["model"] for m in ("mcan_small", "mcan_large"))
    assert large["hidden_dim"] == 2 * small["hidden_dim"] == 1024
    config = composed(["task=translation", "optim=sgd", "schedule=latched_halving"])
    assert "betas" not in config["optim"] and config["optim"]["lr"] == 1.0
    assert config["schedule"] == {"name": "latched_halving", "start_decay_at": 8, "decay": 0.5}
    assert composed(["task=multilabel", "seed=7"])["data"]["seed"] == 7


def test_a_place_can_have_a_mapping_of_its_own(composed):
    whole = "mapping.at.cross={name: fusedmax, lam: 1}"
    for given in ([whole], [f"+{whole}"], ["mapping.at.cross=fusedmax", "mapping.at.cross.lam=1"]):
        config = composed(["task=toy", "mapping=softmax", *given])
        assert config["mapping"]["at"] == {"cross": {"name": "fusedmax", "lam": 1.0, "gamma": 1.0}}


def test_numbers_are_written_one_way_and_mappings_fit_their_places(composed):
    """lam=1 and lam=1.0 are one cell; so are a mapping by its page and by its name."""
    assert composed(["mapping=fusedmax", "mapping.lam=1"]) == composed(["mapping=fusedmax", "mapping.lam=1.0"])
    named = composed(["mapping=custom", "mapping.name=fusedmax"])["mapping"]
    assert models.parameters(named) == models.parameters(composed(["mapping=fusedmax"])["mapping"])
    assert "'here'" in models.problems({"name": "sum_normalization", "at": {}}, {"here": models.Place()})[0]


@pytest.mark.parametrize("task, profile", SETTINGS, ids=["-".join(s) for s in SETTINGS])
def test_task_and_profile_compose(composed, task, profile):
    config = composed([f"task={task}", f"profile={profile}"])
    assert (config["task"]["name"], config["profile"]["name"]) == (task, profile)
    setting = yaml_of("setting", f"{task}_{profile}")
    assert setting.get("train", {}).items() <= config["train"].items()
    told = setting.get("task", {}).get("deviations", [])
    told = [re.sub(r"\$\{(\w+)\.(\w+)\}", lambda m: str(config[m[1]][m[2]]), text) for text in told]
    assert config["task"]["deviations"] == told
    tells = {t for t, p in SETTINGS if yaml_of("setting", f"{t}_{p}").get("task", {}).get("deviations")}
    assert told or task not in tells or (task, profile) == ("imdb", "paper"), "in one profile, but not in this one"
    if profile == "demo":
        assert composed([f"task={task}"]) == config, "a task alone is its demo"


@pytest.mark.parametrize("task", ["translation", "summarization"])
def test_the_command_line_wins_over_the_setting(composed, task):
    keys = {"model.hidden_dim": 128, "optim.lr": 0.5, "train.max_epochs": 2, "decode.beam": 7, "encode.vocab_size": 77}
    asked = {f"{key}={value}": (*key.split("."), value) for key, value in keys.items()}
    for group in ("optim=sgd", "data=toy", "schedule=fixed", "data=gigaword"):
        asked[group] = (group.partition("=")[0], "name", group.partition("=")[2])
    for override, (node, key, value) in (asked | {"model=lstm_tiny": ("model", "embed_dim", 64)}).items():
        assert composed([f"task={task}", override])[node][key] == value, override
    limits = composed([f"task={task}", "data.limits.test=9"])["data"]["limits"]
    assert limits == {"train": 12000, "dev": 500, "test": 9}


def test_your_own_data_are_segmented_reversibly_and_have_further_scores(composed):
    for task in ("translation", "summarization", "fertility"):
        own = composed([f"task={task}", "data=files"])["encode"]
        assert own["joint"] and (own["tokenizer"], own["subword"], own["vocab_size"]) == ("raw", "sentencepiece", None)
        set_by_user = composed([f"task={task}", "data=files", "encode.vocab_size=900", "encode.min_count=2"])["encode"]
        assert set_by_user == own | {"vocab_size": 900, "min_count": 2}
        papers = composed([f"task={task}"])["encode"]
        asked = composed([f"task={task}", "data=files", "encode.subword=bpe"])["encode"]
        assert papers["tokenizer"] != "raw" and asked == papers

    def scores(*overrides):
        return composed(overrides)["task"]["scores"]

    own, table = ("task=translation", "data=files"), ("task=imdb", "data=table")
    assert scores(*own) == ["bleu", "multi_bleu", "chrf"] and scores(*own, "task.scores=[bleu]") == ["bleu"]
    assert scores(*own, "task.scores=[chrf,bleu]") == ["chrf", "bleu"]
    assert "chrf" not in [*scores(own[0]), *scores("task=summarization", own[1])]
    assert (scores(*table), scores(table[0]), scores(*table, "task.scores=[]")) == (["macro_f1"], [], [])


def test_the_generated_fallback_is_for_untouched_data_alone(composed):
    assert composed(["task=translation", "mapping=sparsemax"])["data"]["fallback"] == "toy"
    for touched in ("data=libreoffice_help", "data.target_lang=en", "data.limits.train=100"):
        assert composed(["task=translation", touched])["data"]["fallback"] is None
    with compose.composer() as made:  # an experiment's own overrides are no person's
        assert made(["task=translation", "data.target_lang=en"], [])["data"]["fallback"] == "toy"
        assert made(["task=translation", "data.target_lang=en"], ["data.target_lang=en"])["data"]["fallback"] is None


def test_a_finished_configuration_takes_another_data_set(composed):
    config = composed(["task=summarization"])
    other = compose.with_data(config, "duc2004", ["data.path=somewhere"])
    assert other["data"]["name"] == "duc2004" and other["data"]["path"] == "somewhere"
    assert {k: v for k, v in other.items() if k != "data"} == {k: v for k, v in config.items() if k != "data"}
    with pytest.raises(compose.ConfigError, match=r"'duc2005'.*'duc200[34]'"):
        compose.with_data(config, "duc2005")
    with pytest.raises(compose.ConfigError, match=r"data=snli\b.*this task reads"):
        compose.with_data(config, "snli")
    with pytest.raises(compose.ConfigError, match="seed=3"):
        compose.with_data(config, "duc2004", ["seed=3"])


def test_a_further_test_set_comes_from_the_mirror_that_the_command_names(composed, monkeypatch):
    monkeypatch.delenv("SPARSE_ATTENTION_MIRROR", raising=False)
    named, without = (composed(["task=translation", "profile=cpu", *more]) for more in (["data.mirror=here"], []))
    assert compose.with_data(named, "hansards")["data"]["mirror"] == "here"
    assert compose.with_data(named, "hansards", ["data.mirror=there"])["data"]["mirror"] == "there"
    assert compose.with_data(without, "hansards")["data"]["mirror"] is None
    monkeypatch.setenv("SPARSE_ATTENTION_MIRROR", "set")
    assert compose.with_data(named, "hansards")["data"]["mirror"] == "set"


def test_fairseq_does_not_get_into_the_tree(composed):
    """fairseq registers ConfigStore nodes named like pages of ours; composing after its import must give the same."""
    before = composed(["task=translation", "optim=adam"])
    import tasks.fairseq_plugin  # noqa: F401

    ConfigStore.instance().store("of_another_program", {"a": 1})
    overrides._composed.cache_clear()
    assert composed(["task=translation", "optim=adam"]) == before
    assert "of_another_program.yaml" in ConfigStore.instance().repo, "a program with nodes of its own keeps them"


def stand_in(monkeypatch, config) -> str:
    """A module with the metrics of the configuration's family whose data are there without being read."""
    real = importlib.import_module(compose.module_of(config))
    name = f"stand_in_{config['task']['family']}"

    def test_set(config, *_):
        return TestSet(config["data"]["name"], repr(config["data"]), "")

    fake = SimpleNamespace(RECIPE=(1, 1), METRICS=real.METRICS, EVALUATION_KEYS=("decode",), prepare_test=test_set)
    fake.prepare = lambda config, _: Prepared(repr(config["data"]), "")
    monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setenv(REGISTERED, ",".join(filter(None, (os.environ.get(REGISTERED), name))))
    return name


def planned(monkeypatch, experiment) -> plans.Plan:
    with compose.composer() as made:
        tools = plans.Tools(made, lambda config: stand_in(monkeypatch, config), compose.with_data)
        return plans.prepared(plans.outline([experiment], tools), tools)[0]


PLANS = [pytest.param(*e, id="-".join(e), marks=[] if e[1] == "demo" else pytest.mark.slow) for e in EXPERIMENTS]


@pytest.mark.parametrize("name, profile", PLANS)
def test_experiment_plans(monkeypatch, name, profile):
    experiment = compose.experiment(name, profile)
    plan = planned(monkeypatch, experiment)
    assert not experiment.comparable or (profile == "paper" and experiment.published)
    for r, c in itertools.product(range(len(experiment.rows)), range(len(experiment.columns))):
        slots, column = plan.at(r, c), experiment.columns[c]
        assert {s.seed for s in slots} == set(experiment.seeds), f"row {r}, column {c}"
        assert {s.config["profile"]["name"] for s in slots} == {profile}
        assert column.select.metric == f"dev/{slots[0].config['train']['best_metric']}"
        assert [t.name for t in slots[0].tests] == list(column.evaluate)
    known, key, now = json.loads(IDENTITIES.read_text(encoding="utf-8")), f"{name} {profile}", identities(plan)
    if "RECORD_IDENTITIES" in os.environ:
        IDENTITIES.write_text(json.dumps({**known, key: now}, indent=0) + "\n", encoding="utf-8")
    assert now == known.get(key, now), "finished cells would be trained again"


def identities(plan: plans.Plan) -> dict[str, str]:
    """`column | row` -> the ids of its trainings, by grid point and seed; they do not depend on the content of the data."""
    found: dict[str, str] = {}
    for s in plan.slots:
        place = f"{plan.experiment.columns[s.column].key} | {plan.experiment.rows[s.row].label}"
        asked = identity.asked_id(s.config, importlib.import_module(compose.module_of(s.config)))
        found[place] = f"{found.get(place, '')} {asked}".strip()
    return found


RECORDS = sorted(records.RESULTS.glob(f"{records.FOLDER}/[!s]*.jsonl"))
ONE_OF_A_FAMILY = {"evidence_translation_cpu", "evidence_imdb_cpu", "martins2020_table2_demo", "laha2018_table3_demo"}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one", "all"])
def test_the_configurations_in_records_are_those_of_configs(path, every):
    """A table from records uses them as they are, so `scripts/results.py` must write them again if a setting changes."""
    told, known = archive.read(path)
    configs, typed = archive.configs(told), [f"profile={told['profile']}", *told["arguments"]]
    used: dict = {}
    request = Request.read(typed, REPRODUCE, [told["experiment"]])
    plan = records.outlined(request, configs, used)
    one, cells = plan.experiment, plan.slots
    assert used == configs, "nothing was composed"
    assert {record["key"] for record in known} <= {archive.key(cell.config, cell.family) for cell in cells}
    if every or path.stem in ONE_OF_A_FAMILY:
        part = [f"rows={escape(one.rows[0].label)}", f"columns={one.columns[0].key}", f"seeds={cells[0].seed}"]
        request = Request.read(typed + part * (not every), REPRODUCE, [told["experiment"]])
        fresh: dict = {}
        records.outlined(request, {}, fresh)
        for key, new in fresh.items():  # keys added later are not in records
            family = importlib.import_module(compose.module_of(new))
            assert identity.as_named(new, family) == identity.as_named(configs[key], family), "write the records again"
        assert fresh


def test_what_tables_have_in_common_is_trained_once():
    """Gigaword, DUC 2003 and DUC 2004 are columns of one training; identities are of experiments that exist."""
    known = json.loads(IDENTITIES.read_text(encoding="utf-8"))
    assert {*known} <= {f"{name} {profile}" for name, profile in EXPERIMENTS}
    softmax, cpu = known["laha2018_table2 paper"], known["laha2018_table2 cpu"]
    trainings = [softmax[f"{column} | softmax"] for column in ("fren", "gigaword", "duc2003", "duc2004")]
    assert trainings[0] != trainings[1] == trainings[2] == trainings[3]
    shared = [f"{column} | {mapping}" for column in ("fren", "enfr", "deen") for mapping in ("softmax", "sparsemax")]
    assert all(known["niculae2017_nmt cpu"][place].split()[0] == cpu[place].split()[0] for place in shared)
    assert known["martins2020_nmt cpu"]["deen | discrete softmax"] == cpu["deen | softmax"]


@pytest.mark.parametrize("model", [m for m in pages("model") if m.startswith(("lstm", "transformer"))])
def test_every_model_of_translation_trains(prepared_cell, ran, tiny, tmp_path, model):
    sizes = [o for o in tiny if model.startswith("lstm") or not o.startswith("model.embed_dim")]
    mapping = "continuous_sparsemax" if "continuous" in model else "softmax"
    asked = [*sizes, f"model={model}", f"mapping={mapping}", "encode.joint=true"]
    ran(prepared_cell(asked), Store(tmp_path))
