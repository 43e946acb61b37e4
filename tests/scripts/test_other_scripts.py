"""The further commands: what they refuse, in a sentence and with an exit status, and what they print."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["figures.py", "laha2018_figure4", "seeds=abc"], "seeds=abc must be whole numbers"),
        (["reproduce.py", "demo", "rows=softmax|nope*"], "rows=nope* is in no row of demo under profile demo: softmax; uniform attention; sparsemax"),
        (["reproduce.py", "demo", "columns=nope"], "columns=nope is in no column of demo under profile demo: fren"),
        (["figures.py", "laha2018_figure4", "add=nope"], "nope"),
        (["figures.py", "laha2018_figure99"], "there are: niculae2017_figure1,"),
        (["figures.py", "martins2020_figure3", "profile=xyz"], "profile='xyz' is unknown"),
        (["figures.py", "martins2020_figure3", "--count", "0"], "--count 0"),
        (["reproduce.py", "demo", "--pln"], "--pln is unknown here (did you mean '--plan'?)"),
        (["reproduce.py", "demo", "row=softmax"], "did you mean 'rows'?"),
        (["reproduce.py", "demo", "seed=1,2"], "did you mean 'seeds'?"),
        (["reproduce.py", "profile=cpu"], "EXPERIMENT is missing"),
        (["reproduce.py", "demo", "add=fusedmax,lamda=.1"], "mapping.lamda is not a parameter of fusedmax (did you mean 'lam'?)"),
        (["compare.py", "--task=toy"], "write task=toy, without dashes"),
        (["compare.py", "toy"], "settings are written KEY=VALUE"),
        (["predict.py", "toy", "--nbst=3"], "did you mean '--nbest'?"),
        (["train.py", "task=toy", "mapping", "sparsemax"], "'mapping' cannot be read; write KEY=VALUE"),
        (["train.py", "task=toy", "--mapping=sparsemax"], "write mapping=sparsemax, without dashes"),
        (["train.py", "task=toy", "optm.lr=1"], "optm.lr is not in the configuration (did you mean 'optim'?)"),
        (["data.py", "ftch", "toy"], "did you mean 'WHAT=fetch'"),
        (["extract_features.py", "--path", "/nowhere", "--check"], "there is no feature store"),
        (["data.py", "fetch", "snli_20"], "did you mean 'snli_20k'"),
        (["data.py", "fetch", "toy", "nope"], "'nope'"),
        (["data.py", "fetch", "snli_20k"], "mirror"),
        (["data.py", "show", "duc2004", "--path", "/nowhere"], "/nowhere"),
        (["data.py", "show", "table", "data.path=/nowhere", "data.txt=a"], "did you mean 'text'"),
        (["data.py", "show", "table", "seed=1"], "data.KEY=VALUE"),
        (["try.py"], "data.path is not set"),
        (["try.py", "data.path=/nowhere"], "no file or folder /nowhere"),
        (["try.py", "my pairs.tsv"], "write data.path='my pairs.tsv'"),
        (["predict.py", "translaton/sparsmax"], "did you mean 'translation/sparsemax'? to train it"),
        (["train.py", "task=toy", "lr=.1"], "lr is not in the configuration (did you mean 'optim.lr'?)"),
        (["train.py", "task=toy", "--seed", "3"], "--seed is unknown here; write seed=VALUE, without dashes"),
        (["try.py", "data.pth=mine.csv"], "data.pth is unknown (did you mean 'data.path'?)"),
        (["predict.py", "toy/softmax"], "to train it: python scripts/train.py task=toy mapping=softmax"),
        (["figures.py", "niculae2017_figure9"], "is no figure (did you mean 'niculae2017_figure"),
        (["export.py", "toy/softmax"], "FOLDER is missing"),
        (["predict.py", "3f"], "to train one: python scripts/train.py task=toy mapping=softmax"),
        (["data.py", "fetch", "toy", "--path", "/nowhere"], "data.path is unknown"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_a_sentence(script, monkeypatch, tmp_path, command, said):
    monkeypatch.delenv("SPARSE_ATTENTION_MIRROR", raising=False)
    done = script(*command, SPARSE_ATTENTION_OUTPUTS=str(tmp_path))
    assert done.returncode in (1, 2) and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["train.py", "task=imdb", "model.hidden_dim=-4"], "model.hidden_dim=-4 must be a whole number of at least 1"),
        (["train.py", "task=translation", "model=lstm_fertility", "model.dropout=1"], "model.dropout=1 must be a number"),
        (["try.py", f"data.path={ROOT / 'README.md'}"], "README.md ends in none of .csv"),
        (["figures.py", "niculae2017_figure1", "dmo"], "dmo is no experiment (did you mean 'demo'?)"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)  # fmt: skip
def test_what_needs_no_torch_is_refused_before_its_import(script, tmp_path, command, said):
    """The import takes seconds. Here the packages that take long cannot be imported at all."""
    for package in ("torch", "scipy", "matplotlib", "fairseq"):
        (tmp_path / f"{package}.py").write_text(f"raise SystemExit('{package} is imported')")
    done = script(*command, PYTHONPATH=str(tmp_path), SPARSE_ATTENTION_OUTPUTS=str(tmp_path))
    assert done.returncode in (1, 2) and said in done.stderr, done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_a_target_that_does_not_exist_names_those_of_the_tables():
    done = subprocess.run(
        ["make", "--no-print-directory", "reproduce-table9"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout.count("\n") == 1
    assert (
        "reproduce-table9: no such target" in done.stdout
        and "reproduce-table2 reproduce-table3 reproduce-figure5" in done.stdout
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    ("typed", "meant"), [("setpu", "setup"), ("reproduce-tabel2", "reproduce-table2"), ("demmo", "demo")]
)
def test_a_misspelt_target_gets_the_nearest(typed, meant):
    done = subprocess.run(
        ["make", "--no-print-directory", typed], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and f"make {typed}: no such target (did you mean {meant}?)" in done.stdout


def test_data_are_listed_fetched_and_shown(script, tmp_path):
    listed = script("data.py", "list")
    assert listed.returncode == 0 and "libreoffice_help" in listed.stdout and "snli_20k" in listed.stdout
    fetched = script("data.py", "fetch", "toy", "--root", str(tmp_path))
    assert fetched.returncode == 0 and fetched.stdout.startswith("toy: ") and "train" in fetched.stdout
    shown = script("data.py", "show", "toy", "--root", str(tmp_path))
    assert shown.returncode == 0 and shown.stdout.count("Pair(") == 5


@pytest.mark.parametrize("buffered", [True, False])
def test_a_reader_that_ends_early_is_no_error(buffered):
    given = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    command = [sys.executable, "scripts/data.py", "list"]
    with subprocess.Popen(command, cwd=ROOT, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_data_are_where_configurations_look_for_them(script, tmp_path):
    places = {"SPARSE_ATTENTION_DATA": str(tmp_path / "data"), "SPARSE_ATTENTION_MIRROR": str(tmp_path / "mirror")}
    fetched = script("data.py", "fetch", "toy", **places)  # a set without a mirror
    assert fetched.returncode == 0 and fetched.stdout.rstrip().endswith(f"from {tmp_path / 'data'}")
    mirrored = script("data.py", "verify", "snli_20k", **places)
    assert mirrored.returncode == 1 and f"looked at: {tmp_path / 'mirror'}" in mirrored.stderr


@pytest.mark.parametrize("name", ["data.py", "figures.py", "extract_features.py"])
def test_help_ends_with_what_to_run_next(script, name):
    done = script(name, "--help")
    assert done.returncode == 0 and "Next: " in done.stdout[-200:]


WITH_EXAMPLES = (
    "bench", "bench_attention", "bench_training", "compare", "crash_test", "data", "evaluate", "export", "extract_features",
    "figures", "language_model", "mutants", "paper_figures", "predict", "properties_table", "reproduce", "results", "store",
    "train", "wandb_dashboard", "wandb_upload",
)  # fmt: skip


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_every_command_has_three_examples(name):
    text = ast.get_docstring(ast.parse((ROOT / "scripts" / f"{name}.py").read_text(encoding="utf-8"))) or ""
    usages = [line for line in text.splitlines() if "[" in line or ("FOLDER" in line and "Example" not in line)]
    assert text.count(f"python scripts/{name}.py") - sum(f"python scripts/{name}.py" in u for u in usages) >= 3
    assert len(text.splitlines()[0]) > 40, "the first line says what it is for"


def test_help_tells_the_parameters_of_the_mapping_that_is_named(script):
    said = script("train.py", "mapping=fusedmax", "--help").stdout
    assert (
        "mapping.lam          lam >= 0; default 0.1; weight of the total variation" in said
        and "Configuration groups" in said
    )
    said = script("reproduce.py", "--help", "add=oscarmax,lam=0.1").stdout
    assert "mapping.mode         mode in {exact, paper}" in said and "experiments:" in said
