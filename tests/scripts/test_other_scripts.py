"""The further commands: what they print, their help, and scripts/reproduce.py before it runs anything."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repro.plan.experiment import Experiment
from tasks.commands import reproduce
from tasks.config import compose
from tasks.config.request import REPRODUCE, Request

ROOT = Path(__file__).resolve().parents[2]
TYPED = {"reproduce-table9": "reproduce-table2 reproduce-table3 reproduce-figure5"}
TYPED |= {"setpu": "did you mean setup?", "reproduce-tabel2": "did you mean reproduce-table2?"}


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(("typed", "said"), TYPED.items())
def test_a_target_that_does_not_exist_gets_the_nearest_and_those_of_the_tables(typed, said):
    command = ["make", "--no-print-directory", typed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout.count("\n") == 1
    assert f"make {typed}: no such target" in done.stdout and said in done.stdout


def test_data_are_listed_fetched_and_shown_where_configurations_look_for_them(script, tmp_path):
    places = {"SPARSE_ATTENTION_DATA": str(tmp_path / "data"), "SPARSE_ATTENTION_MIRROR": str(tmp_path / "mirror")}
    listed = script("data.py", "list")
    assert listed.returncode == 0 and "libreoffice_help" in listed.stdout and "snli_20k" in listed.stdout
    fetched = script("data.py", "fetch", "toy", **places)  # a set without a mirror
    assert fetched.returncode == 0 and fetched.stdout.startswith("toy: ") and "train" in fetched.stdout
    assert fetched.stdout.rstrip().endswith(f"from {tmp_path / 'data'}")
    shown = script("data.py", "show", "toy", "--root", str(tmp_path / "data"))
    assert shown.returncode == 0 and shown.stdout.count("Pair(") == 5
    mirrored = script("data.py", "verify", "snli_20k", **places)
    assert mirrored.returncode == 1 and f"looked at: {tmp_path / 'mirror'}" in mirrored.stderr


def test_records_of_several_labels_and_the_beginnings_of_long_texts_are_shown(script, tmp_path):
    file = tmp_path / "weather.csv"
    rows = [f"{i / 10},{i % 7},{i % 2},1" for i in range(60)]
    file.write_text("\n".join(["f0,f1,sun,rain", *rows]) + "\n")
    shown = script("data.py", "show", "features", f"data.path={file}", "data.label=[sun,rain]")
    assert re.search(r"labels (0 )?1; 2 features: -?[\d.]+ -?[\d.]+\n", shown.stdout), shown.stdout + shown.stderr
    assert shown.returncode == 0
    texts = (" ".join(chr(97 + i % 26) * (j % 9 + 1) + chr(97 + i // 26) for j in range(600)) for i in range(300))
    file.write_text("\n".join(["words,class", *(f"{text},{'no' if 'z' in text else 'yes'}" for text in texts)]) + "\n")
    shown = script("data.py", "show", "table", f"data.path={file}", "data.text=words", "data.label=class")
    assert [len(line) for line in shown.stdout.splitlines()[-5:]] == [2003] * 5, "two spaces, 2,000 characters, ..."


def test_a_python_without_the_packages_is_told_which_one_to_use():
    command = [sys.executable, "-S", "scripts/data.py", "list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "has no package " in done.stderr
    assert done.stderr.rstrip().endswith(".venv/bin/python")


@pytest.mark.parametrize("buffered", [True, False])
def test_a_reader_that_ends_early_is_no_error(buffered):
    given = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    command = [sys.executable, "scripts/data.py", "list"]
    with subprocess.Popen(command, cwd=ROOT, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_output_to_a_full_disk_is_told():
    command = [sys.executable, "scripts/data.py", "list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: the disk is full: ")
    assert "Traceback" not in done.stderr


def test_help_tells_the_parameters_of_the_mapping_that_is_named(script, command, capsys):
    said = script("train.py", "mapping=fusedmax", "--help").stdout
    assert re.search(r"mapping\.lam +lam >= 0; default 0\.1; ", said) and "Configuration groups" in said
    assert said.strip().splitlines()[-1].startswith("Next: python scripts/train.py")
    assert command("reproduce", "--help", "add=oscarmax,lam=0.1") == 0
    said = capsys.readouterr().out
    assert re.search(r"mapping\.mode +mode in {exact, paper}", said) and "experiments:" in said


def experiments(name: str, *arguments: str) -> list[Experiment]:
    return reproduce.experiments(Request.read(arguments, REPRODUCE, [name]))


def test_a_part_of_a_page_keeps_its_order():
    [one] = experiments("laha2018_table2", "rows=sparse*|softmax", "columns=enfr_demo", "seeds=2")
    assert [row.label for row in one.rows] == ["softmax", "sparsemax", "sparsegen-lin", "sparsehourglass"]
    assert ([column.key for column in one.columns], one.seeds) == (["enfr_demo"], (2,))


def test_an_experiment_on_other_data_says_so_and_shows_no_printed_numbers():
    """Headings, printed numbers and the notes on the setting follow what is used."""
    files = ["data=files", "data.path=/some where/pairs.tsv", "train.max_epochs=4", "train.batch_size=16"]
    (one,) = experiments("laha2018_table2", "profile=demo", *files)
    assert one.columns[0].label == "pairs.tsv (data=files), fren_demo" and not any(c.published for c in one.columns)
    (demo,) = experiments("demo", "data=files", "data.path=pairs.tsv")
    assert not demo.opening and demo.draw, "the opening is about the demo's own data"
    (same,) = experiments("laha2018_table2", "profile=demo", "data.mirror=/mirror", "train.max_epochs=4")
    assert same.columns[0].label.startswith("FR-EN, LibreOffice help") and same.columns[0].published
    (alone,) = experiments("laha2018_table2", "columns=fren_demo", "data=files", "data.path=a.tsv")
    assert [c.label for c in alone.columns] == ["a.tsv (data=files)"]
    with compose.composer() as composed:
        config = composed(["task=translation", "mapping=softmax", "train.max_epochs=4", "train.batch_size=16"])
    (said,) = [d for d in config["task"]["deviations"] if d.startswith("optim:")]
    assert "batches of 16, 4 epochs (laha2018, malaviya2018, niculae2017: OpenNMT-py's defaults, SGD at 1" in said
