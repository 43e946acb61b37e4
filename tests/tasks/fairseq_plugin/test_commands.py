"""fairseq's own commands with `--user-dir`: on stock `translation` data, and on folders that we encoded."""

import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import torch
from torch import nn

import sparse_attention as sa
from tasks.seq2seq.encode import open_encoded

SMALL = "--embed-dim 12 --hidden-dim 12 --layers 1 --init-range 0.8"
TRANSFORMER = "--hidden-dim 12 --ff-dim 12 --heads 2 --layers 1"
TRAIN = "--cpu --optimizer adam --lr 0.01 --max-epoch 1 --batch-size 16 --no-progress-bar --num-workers 0"
RUN = """
import json, runpy, sys
for sys.argv in json.loads(sys.argv[1]):
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
"""


@pytest.fixture(scope="module")
def fairseq(tmp_path_factory, root):
    """`fairseq("train FOLDER --lr 1", "generate FOLDER")`: the output of commands that one process runs after each other.

    Nothing of the repository is on Python's path or imported.
    """
    if sys.version_info >= (3, 14):
        pytest.skip("fairseq's own commands do not start on Python 3.14")
    where = tmp_path_factory.mktemp("elsewhere")

    def run(*lines: str) -> str:
        asked = []
        for command, *arguments in map(shlex.split, lines):
            script = str(Path(sys.executable).parent / f"fairseq-{command}")
            asked.append([script, *arguments, "--user-dir", str(root / "tasks" / "fairseq_plugin")])
        line = [sys.executable, "-c", RUN, json.dumps(asked)]
        env = os.environ | {"PYTHONWARNINGS": "ignore"}
        done = subprocess.run(line, cwd=where, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def sentences() -> dict[str, list[tuple[str, str]]]:
    rng = random.Random(1)
    draw = lambda: [f"w{rng.randrange(20)}" for _ in range(rng.randint(2, 8))]  # noqa: E731
    rows = {split: [draw() for _ in range(n)] for split, n in (("train", 64), ("dev", 16), ("test", 16))}
    return {split: [(" ".join(x), " ".join("t" + w for w in x)) for x in xs] for split, xs in rows.items()}


@pytest.fixture(scope="module")
def stock(sentences, tmp_path_factory) -> Path:
    """What fairseq-preprocess makes."""
    folder = tmp_path_factory.mktemp("stock")
    for split, rows in sentences.items():
        for side, language in enumerate("ab"):
            (folder / f"{split}.{language}").write_text("".join(row[side] + "\n" for row in rows))
    prefixes = f"--trainpref {folder}/train --validpref {folder}/dev --testpref {folder}/test"
    asked = f"-s a -t b {prefixes} --destdir {folder}/bin".split()
    done = forked.run(Path(sys.executable).parent / "fairseq-preprocess", asked, os.environ, folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def outputs(said: str) -> dict[int, list[str]]:
    return {int(i): line.split() for i, line in re.findall(r"^H-(\d+)\t\S+\t(.*)$", said, re.M)}


def losses(said: str) -> list[str]:
    return re.findall(r"\bvalid .*?\| loss (\S+)", said)


@pytest.mark.parametrize(
    "arch, sizes, others",
    [("sa_seq2seq", SMALL, {}), pytest.param("sa_transformer", TRANSFORMER, {"softmax": "{}"}, marks=pytest.mark.slow)],
    ids=["lstm", "transformer"],
)
def test_stock_translation_data(fairseq, stock, sentences, tmp_path, arch, sizes, others):
    asked = [
        f"train {stock} --arch {arch} --mapping {mapping} --mapping-params '{params}' {sizes} {TRAIN} "
        f"--task translation --criterion cross_entropy --save-dir {tmp_path / mapping}"
        for mapping, params in {**others, "fusedmax": '{"lam": 0.5}'}.items()
    ]
    checkpoint = tmp_path / "fusedmax" / "checkpoint_last.pt"
    said = fairseq(*asked, f"generate {stock} --path {checkpoint} --cpu --beam 3 --print-alignment hard --batch-size 8")
    assert len(set(losses(said))) == len(asked), said
    assert sorted(outputs(said)) == list(range(16))
    alignments = dict(re.findall(r"^A-(\d+)\t(.*)$", said, re.M))
    assert len(alignments) == 16
    for i, (source, _) in enumerate(sentences["test"]):  # positions of the source, wherever a batch had its padding
        assert all(int(pair.split("-")[0]) < len(source.split()) for pair in alignments[str(i)].split())


@pytest.mark.slow
def test_a_folder_of_encoded_pairs(fairseq, prepared_cell, tmp_path):
    cell = prepared_cell(["task=toy", "data.limits={train: 64, dev: 16, test: 16}"])
    test = cell.tests[0].folder
    asked = "--task sa_pairs --arch sa_seq2seq --mapping sparsemax --lr-scheduler inverse_sqrt --warmup-updates 4"
    said = fairseq(
        f"train {cell.prepared.folder} {asked} {SMALL} {TRAIN} --criterion sa_tokens --save-dir {tmp_path}",
        f"generate {test} --task sa_pairs --path {tmp_path}/checkpoint_last.pt --cpu --beam 2",
    )
    assert "attention_zeros" in said
    assert sorted(outputs(said)) == list(range(16))
    first = " ".join(open_encoded(test).splits["test"].source_tokens[0])
    assert {row.split("\t")[1] for row in said.splitlines() if row.startswith("S-0\t")} == {first}


@pytest.mark.slow
def test_a_folder_of_encoded_texts(fairseq, prepared_cell, tmp_path):
    of = ["task=snli", "data=toy_entailment", "encode.vectors=null", "data.limits={train: 20, dev: 20, test: 20}"]
    folder = prepared_cell(of).prepared.folder
    asked = "--task sa_texts --arch sa_snli_attentive --embed-dim 8 --hidden-dim 8 --criterion sa_classes"
    said = fairseq(f"train {folder} {asked} --mapping sparsemax --save-dir {tmp_path} {TRAIN}")
    assert len(losses(said)) == 1 and "accuracy" in said


@pytest.mark.slow
def test_the_page_for_those_who_come_from_fairseq(fairseq, stock, root, tmp_path):
    """Its command trains; fairseq's own attention is refused by what would change nothing in it."""
    page = (root / "docs" / "start" / "coming_from.md").read_text(encoding="utf-8")
    command = re.search(r"^fairseq-train DATA (.*\\\n.*)$", page, re.M)[1].replace("\\\n", " ")
    asked = re.sub(r"--max-epoch \d+", "--max-epoch 1", command.replace("--user-dir tasks/fairseq_plugin", ""))
    said = fairseq(f"train {stock} {asked} {TRANSFORMER} --cpu --num-workers 0 --save-dir {tmp_path}")
    assert "done training in" in said
    from fairseq.modules import MultiheadAttention

    attention, x = MultiheadAttention(8, 2, self_attention=True), torch.randn(3, 2, 8)
    with pytest.raises(ValueError, match=r"contains no torch\.nn\.MultiheadAttention"):
        sa.nn.replace(nn.Sequential(attention))
    refused = pytest.raises(RuntimeError, match=r"neither sdpa\.use nor sa\.nn\.replace can change")
    with refused, sa.integrations.sdpa.use("sparsemax"):
        attention(x, x, x)
