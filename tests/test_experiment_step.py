"""Every experiment, in each of its profiles, trains one step at toy size on data that come as the real ones do.

The hub is its stand-in on the loopback; mirrors, wheels and folders hold small files in the published layouts; apt and archives are
not asked (generated texts; tests/tasks/data reads files as those of the archives). Of each column one row is trained and scored,
another one for the next column.
"""

import dataclasses

import pytest
from hub_stand_in import PATHS, parquet, serving
from mirror_stand_in import write_folders, write_wheels

from repro.identity import Cell, prepare
from repro.store import Store
from tasks import data
from tasks.config import compose
from tasks.data import NullProgress, manifests
from tasks.data.sets import features, plain, questions

GENERATED = {"libreoffice_help": "toy", "debian_descriptions": "toy", "debian_pairs": "toy_entailment"}  # apt's
GENERATED |= {"iwslt2017": "toy", "snli": "toy_entailment"}  # of archives
SMALL = "runtime.device=cpu runtime.workers=1 train.max_epochs=1 train.batch_size=16 train.batch_size_valid=16".split()
PAIRS = "data.limits={train:16,dev:6,test:6} model.embed_dim=8 model.hidden_dim=8 model.layers=1".split()
PAIRS += "decode.beam=2 decode.max_len_b=6".split()
TEXTS = ("data.limits={train: 16, dev: 6, test: 6}", "model.embed_dim=8", "model.hidden_dim=8", "encode.vectors=null")
PICTURES = "data.limits={train:16,dev:6,test:6} data.input=pixels data.image_size=[16,16] data.dev_share=0.2".split()
PICTURES += "model.cnn_channels=[8] model.cnn_strides=[4] model.hidden_dim=16 model.ff_dim=16".split()
PICTURES += "model.flat_mlp_dim=8 model.flat_out_dim=16 model.embed_dim=8 model.layers=1 model.heads=2".split()
PICTURES += "encode.vectors=null encode.min_answer_count=1".split()
OF_FAMILY = {"seq2seq": PAIRS, "fertility": PAIRS, "classification": TEXTS, "vqa": PICTURES}
OF_FAMILY |= {"multilabel": ("task.tune.penalties=[0.1]", "task.fit.iterations=2")}


def columns():
    """(experiment, profile, column) of all; the first of each profile is quick enough for every run of the tests."""
    for name in compose.names_in("experiment"):
        for profile in compose.page("experiment", name)["profiles"]:
            for c, column in enumerate(compose.experiment(name, profile).columns[:5]):
                marks = [pytest.mark.slow] if c else []
                yield pytest.param(name, profile, c, id=f"{name}-{profile}-{column.key}", marks=marks)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory, _mirror):
    """A server in place of the hub, and folders in place of mirrors, wheels and what is got by hand."""
    folder, (mirror, pages) = tmp_path_factory.mktemp("stand-ins"), _mirror
    write_wheels(folder / "wheels")
    with serving() as server, pytest.MonkeyPatch.context() as patch:
        server.repos = {repo: parquet(repo, folder) for repo in PATHS}
        patch.setattr(manifests, "FOLDER", pages)
        patch.setattr(features, "verify", lambda *a, **k: None)
        patch.setattr(features, "TRAIN", 24)
        for module in (features, questions, plain):
            patch.setattr(module, "fetch_wheel", lambda *a, **k: folder / "wheels")
        for name, other in GENERATED.items():
            patch.setattr(data.set_module(name), "load", _generated(other))
        for variable, path in write_folders(folder).items():
            patch.setenv(variable, str(path))
        for variable in ("GLOVE", "IMDB", "SNLI", "GIGAWORD"):
            patch.delenv(f"SPARSE_ATTENTION_{variable}", raising=False)
        patch.setenv("HF_ENDPOINT", server.url)
        patch.setenv("no_proxy", "127.0.0.1")
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        yield mirror


def _generated(name):
    def load(manifest, options, root, progress):
        return data.open_data({"name": name, "limits": dataclasses.asdict(options.limits)}, root, progress)

    return load


def _there(node, name):
    """The set's options on this command line, of those that it has."""
    options = {f.name for f in dataclasses.fields(data.set_options(name))}
    return [o for o in node if not o.startswith("data.") or o.split("=")[0].split(".")[1] in options]


@pytest.mark.parametrize("name, profile, c", columns())
def test_an_experiment_trains_one_step(name, profile, c, stand_ins, ran, tmp_path_factory, monkeypatch, isolated):
    monkeypatch.setenv("SPARSE_ATTENTION_MIRROR", str(stand_ins))
    experiment = compose.experiment(name, profile)
    column, row = experiment.columns[c], experiment.rows[-1 - c % len(experiment.rows)]
    base = [*column.overrides, f"profile={profile}", *row.changes]
    with compose.composer() as made:
        plain = made(base, [])
        small = _there(OF_FAMILY[plain["task"]["family"]], plain["data"]["name"])
        nodes = {f"{node}.{key}" for node in ("model", "encode", "decode") for key in plain[node]}
        small = [o for o in small if o.split("=")[0] in nodes or not o.startswith(("model.", "encode.", "decode."))]
        if plain["task"]["name"] == "imdb":
            small.append("model.score_dim=8")
        config = made([*base, *SMALL, *small, f"paths.data={isolated / 'data'}"], [])
    further = {name: compose.with_data(config, name)["data"] for name in column.evaluate if name.startswith("duc")}
    cell = prepare(Cell(config, compose.module_of(config), further=further), NullProgress())
    ran(cell, Store(tmp_path_factory.mktemp("store")))
