"""Command lines that the scripts refuse: in a sentence, with an exit status, before anything is run or written.

Each table runs in one process, for starting one takes longer than refusing.
"""

import json
import os
import subprocess
import sys

import forked
import pytest
import yaml

from tasks.config import compose

# Runs each command line in this process; prints status and texts of each, and says whether torch was loaded.
DRIVER = """
import contextlib, io, json, os, runpy, sys
scripts, absent, commands = sys.argv[1], sys.argv[2].split(), json.load(sys.stdin)
sys.path.insert(0, scripts)
sys.modules |= dict.fromkeys(absent)  # importing these raises ModuleNotFoundError
told = []
for script, *arguments in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = runpy.run_path(os.path.join(scripts, script))["main"](arguments)
        except BaseException as error:
            status = repr(error)
    told.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(root, tmp_path_factory):
    """`told(commands, absent="")`: (exit status, standard output, standard error) of each; no cell and no data are written."""

    def run(commands: list[list[str]], absent: str = "") -> list[tuple[int, str, str]]:
        outputs = tmp_path_factory.mktemp("outputs")
        (outputs / "notes.md").write_text("in the way")
        if absent:  # the cell toy/softmax, of which only the names are there
            config = outputs / "cells" / "toy" / "softmax" / "0123" / "config.yaml"
            config.parent.mkdir(parents=True)
            with compose.composer() as composed:
                config.write_text(yaml.safe_dump(composed(["task=toy"]) | {"module": "tasks.cells.seq2seq"}))
            config.with_name("manifest.json").write_text("{}")
        before = {*outputs.rglob("*"), *(outputs / "data" for command in commands if command[0] == "data.py")}
        places = {"SPARSE_ATTENTION_OUTPUTS": str(outputs), "SPARSE_ATTENTION_DATA": str(outputs / "data")}
        env = {**os.environ, **places, "SPARSE_ATTENTION_MIRROR": "", "PYTHONWARNINGS": "ignore", "PATH": str(outputs)}
        driver = tmp_path_factory.mktemp("driver") / "driver.py"
        driver.write_text(DRIVER)
        asked, typed = [str(root / "scripts"), absent], json.dumps(commands)
        if absent:
            line = [sys.executable, str(driver), *asked]
            done = subprocess.run(line, input=typed, env=env, cwd=outputs, capture_output=True, text=True, check=False)
        else:
            done = forked.run(driver, asked, env, outputs, 300, typed)
        assert done.returncode == 0, done.stderr
        left = {path for path in {*outputs.rglob("*")} - before if "sweeps" not in path.parts}
        assert left == set(), "the command line is checked before anything is done"
        return json.loads(done.stdout.splitlines()[-1])

    return run


def not_refused(table, found) -> list[tuple[list[str], object]]:
    """The command lines that did not end with an exit status and the words asked for, in one message."""
    return [
        (command, (status, err))
        for (command, *said), (status, _, err) in zip(table, found, strict=True)
        if status not in (1, 2) or [text for text in said if text not in err] or err.count("error:") != 1
    ]


# Names, files and values that need no torch, whose import takes seconds.
EARLY = [
    (["train.py", "-m", "task=toy", "train.max_epoch=1,2"], "did you mean 'max_epochs'"),
    (["train.py", "task=toy", "lr=.1"], "lr is not in the configuration (did you mean 'optim.lr'?)"),
    (["train.py", "task=toy", "mapping=fusedmax", "mapping.lamda=1"], "did you mean 'lam'"),
    (["train.py", "task=toy", "mapping", "sparsemax"], "unexpected argument 'mapping'; write settings as KEY=VALUE"),
    (["train.py", "task=toy", "--mapping=sparsemax"], "write mapping=sparsemax, without dashes"),
    (["reproduce.py", "experiment=demo"], "EXPERIMENT is missing; write one without a key: attention_quality, demo,"),
    (["reproduce.py", "table3"], "did you mean 'laha2018_table3'"),
    (["reproduce.py", "demo", "mapping=entmax"], "would put entmax into every row; add=entmax adds a row"),
    (["reproduce.py", "demo", "--profile", "cpu"], "--profile is unknown here; write profile=cpu, without dashes"),
    (["train.py", "task=toy", "--nonsense=3"], "--nonsense is unknown here; there are: --multirun, --plan, --cfg"),
    (["try.py", "data.path=x.tsv", "--plan"], "--plan is unknown here; there are: none"),
    (["evaluate.py"], "required: CELL; -h prints the help"),
    (["compare.py", "taks=toy"], "did you mean 'task'"),
    (["evaluate.py", "toy/softmxa"], "did you mean 'toy/softmax'"),
    (["figures.py", "niculae2017_figure1", "dmo"], "dmo is no experiment (did you mean 'demo'?)"),
    (["try.py"], "data.path is not set"),
    (["try.py", "data.path=nowhere/at/all"], "no file or folder nowhere/at/all"),
    (["try.py", "data.path=notes.md"], "notes.md ends in none of .csv"),
    (["try.py", "my pairs.tsv"], "write data.path='my pairs.tsv'"),
    (["try.py", "data.pth=mine.csv"], "set data.path to a file or folder"),
]


def test_what_needs_no_torch_is_refused_before_its_import(told):
    found = told([command for command, *_ in EARLY], "torch scipy matplotlib fairseq")
    assert not_refused(EARLY, found) == []


LATE = [
    (["figures.py", "laha2018_figure4", "seeds=abc"], "seeds=abc must be whole numbers"),
    (["figures.py", "laha2018_figure99"], "there are: niculae2017_figure1,"),
    (["figures.py", "martins2020_figure3", "profile=xyz"], "profile='xyz' is unknown"),
    (["reproduce.py", "demo", "rows=softmax|nope*"], "rows=nope* matches no row of demo, profile=demo: softmax; "),
    (["reproduce.py", "demo", "row=softmax"], "did you mean 'rows'?"),
    (["reproduce.py", "demo", "seed=1,2"], "did you mean 'seeds'?"),
    (["reproduce.py", "demo", "add=fusedmax,lamda=.1"], "mapping.lamda is not a parameter of fusedmax (did you mean 'lam'?)"),
    (["reproduce.py", "demo", "~seed"], "~seed", "seed=..."),
    (["compare.py", "toy"], "write settings as KEY=VALUE, such as task=toy"),
    (["predict.py", "toy", "--nbst=3"], "did you mean '--nbest'?"),
    (["predict.py", "translaton/sparsmax"], "did you mean 'translation/sparsemax'? to train it"),
    (["predict.py", "toy/softmax"], "to train it: python scripts/train.py task=toy mapping=softmax"),
    (["export.py", "toy/softmax"], "required: FOLDER"),
    (["data.py", "ftch", "toy"], "did you mean 'fetch'"),
    (["data.py", "fetch", "snli_20k"], "mirror"),
    (["data.py", "fetch", "toy", "data.path=nowhere"], "data.path is unknown"),
    (["data.py", "show", "duc2004", "data.path=nowhere"], "nowhere"),
    (["data.py", "show", "table", "data.path=nowhere", "data.txt=a"], "did you mean 'text'"),
    (["data.py", "show", "table", "seed=1"], "data.KEY=VALUE"),
    (["data.py", "features", "--path", "nowhere", "--check"], "there is no feature store"),
    (["train.py", "-m", "task=null,toy"], "task=None", "toy"),
    (["train.py", "-m", "task=toy", "mapping=fusedmax", "mapping.lam=0.2,-1"], "mapping.lam=-1", "lam >= 0", "nothing was run"),
    (["train.py", "-m", "task=toy", "seed=1,2", "hydra.job.name=mine"], "hydra.job.name=mine", "only used by -m hydra/sweeper=optuna"),
    (["train.py", "task=toy", "hydra/launcher=basic"], "hydra/launcher=basic", "leave it out"),
    (["train.py", "task=toy", "paths.outputs=notes.md"], "notes.md", "cannot be written"),
]  # fmt: skip


def test_what_cannot_be_done_is_said_in_a_sentence(told):
    found = told([command for command, *_ in LATE])
    assert not_refused(LATE, found) == []


LAUNCHERS = {
    "launcher=slurm": "sinfo is not on the PATH; run this where jobs are submitted, or set launcher=local",
    "runtime.devices=[99]": "so there is no 99; allowed: all, none",
}


def test_a_launcher_that_cannot_begin_is_one_sentence_before_any_data(told):
    begun = (["train.py", "task=toy"], ["train.py", "-m", "task=toy", "seed=1,2"], ["reproduce.py", "demo"])
    table = [([*command, asked], said) for command in begun for asked, said in LAUNCHERS.items()]
    found = told([command for command, _ in table])
    assert not_refused(table, found) == [] and {err.count("\n") for *_, err in found} == {1}


def test_without_a_task_nothing_runs(told):
    for status, _, err in told([["train.py", "mapping=fusedmax"], ["train.py", "-m", "seed=1,2", "mapping=fusedmax"]]):
        assert status == 2 and "no task is named; add task=NAME, one of: fertility, imdb" in err
