"""docs/extending.md and extending_table.md are followed in a copy of the repository: its files are written, its commands run."""

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = "".join((ROOT / "docs" / f"extending{page}.md").read_text(encoding="utf-8") for page in ("", "_table"))
FILE = re.compile(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)^```$", re.M | re.S)
ADDED = re.compile(r"^At the end of `([\w/.]+)`:\n\n```\w+\n(.*?)^```$", re.M | re.S)
COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
OF_ALL_FILES = "tests/test_architecture.py tests/test_configs.py tests/test_published.py"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The tracked and new files of the repository, with the page's files added."""
    folder = tmp_path_factory.mktemp("copy")
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    for name in filter(None, listed.stdout.split("\0")):
        if (source := ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(source.read_bytes())
    return folder


def run(copy: Path, line: str, text: str = "", **environment: str) -> str:
    """What a command prints in the copy; it must not fail."""
    command = [sys.executable if word == "python" else word for word in shlex.split(line)]
    how = {"capture_output": True, "text": True, "timeout": 300, "check": False, "input": text}
    done = subprocess.run(command, cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)} | environment, **how)
    assert done.returncode == 0, f"{line}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_every_file_named_in_the_table_exists():
    table = PAGE.partition("## A mapping")[0]
    named = {*re.findall(r"`((?:sparse_attention|tasks|configs|data)/[\w/.]+)`", table)}
    assert len(named) >= 5
    assert [n for n in sorted(named) if not (ROOT / n).exists() and "sst2" not in n] == []


@pytest.mark.slow
def test_the_page_can_be_followed(copy, tmp_path):
    files = FILE.findall(PAGE)
    assert len(files) == 9
    if existing := [name for name, _ in files if (copy / name).exists()]:
        listed = subprocess.run(["git", "ls-files", *existing], cwd=ROOT, capture_output=True, text=True, check=True)
        assert listed.stdout == "", "the page's examples must be new"
        pytest.skip(f"the page has been followed here: {', '.join(existing)}")
    commands = [line for block in COMMANDS.findall(PAGE) for line in block.splitlines()]
    assert len(commands) == 8
    written = added = 0
    places = {name: str(tmp_path / name.lower()) for name in ("OUTPUTS", "DATA")}
    ours = {f"SPARSE_ATTENTION_{name}": value for name, value in (places | {"DEVICE": "cpu"}).items()}
    for part in re.split(r"^## ", PAGE, flags=re.M):
        for name, text in FILE.findall(part):
            (copy / name).write_text(text, encoding="utf-8")
            written += 1
        for name, text in ADDED.findall(part):
            with (copy / name).open("a", encoding="utf-8") as file:
                file.write("\n\n" + text)
            added += 1
        for block in COMMANDS.findall(part):
            for line in block.splitlines():
                table = run(copy, line, **ours)
    assert (written, added) == (len(files), 1)
    assert "[meanmax](#meanmax)" in (copy / "docs" / "reference" / "mappings" / "README.md").read_text(encoding="utf-8")
    assert "meanmax" in table and "not comparable" in table
    for of_imdb in ("GloVe 840B, fixed", "biLSTM", "combined rows"):
        assert of_imdb not in table, "a deviation of another model or paper"
    with next((tmp_path / "outputs").rglob("example2026_table9*.csv")).open(encoding="utf-8") as file:
        cells = {(c["row"], c["metric"]): c for c in csv.DictReader(file) if c["source"] == "ours"}
    support = {row: float(cells[row, "test/attention_support"]["mean"]) for row in ("softmax", "sparsemax", "meanmax")}
    assert support["softmax"] == 9 and max(support["sparsemax"], support["meanmax"]) < 5
    for row in support:
        assert float(cells[row, "test/accuracy"]["mean"]) > 85
        assert 0.8 < float(cells[row, "test/confidence"]["mean"]) < 1
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)  # tests of the sources ask git which files there are
    run(copy, "python -m ruff check .", **ours)
    chosen = "stands_in or begins or every_option or meanmax or example2026 or declared"
    run(copy, f"python -m pytest -q -n 0 {OF_ALL_FILES} -k '{chosen}'", **ours)


@pytest.mark.slow
def test_a_family_is_its_files_and_a_line_of_the_contracts(copy, tmp_path):
    """The files that the page's row names; a cell is trained and used, and `make lint` knows the room."""
    family = ROOT / "tests" / "toy_family"
    for file in (file for file in family.rglob("*") if file.suffix in (".py", ".yaml")):
        (copy / file.relative_to(family)).parent.mkdir(parents=True, exist_ok=True)
        (copy / file.relative_to(family)).write_bytes(file.read_bytes())
    contracts, line = (copy / "pyproject.toml").read_text(encoding="utf-8"), '  "seq2seq | classification'
    assert contracts.count(line) == 1
    (copy / "pyproject.toml").write_text(contracts.replace(line, f'  "ratings",\n{line}'), encoding="utf-8")
    outputs, data = f"paths.outputs={tmp_path / 'outputs'}", f"paths.data={tmp_path / 'data'}"
    for mapping in ("softmax", "sparsemax"):
        line = f"python scripts/train.py task=ratings mapping={mapping} {outputs} {data} runtime.device=cpu"
        table = run(copy, line)
        error, trivial = (
            float(row.split()[-1]) for row in table.splitlines() if "gamma=1) " in row or "always 0" in row
        )
        assert error < trivial / 2 and trivial == 0.5, table
    texts = "superb word3 lovely word2\nawful word3 boring word2\n"
    rated = run(copy, f"python scripts/predict.py ratings/sparsemax {outputs}", texts)
    good, bad = map(float, rated.splitlines())
    assert good - bad > 0.5
    lint = Path(sys.executable).with_name("lint-imports")
    assert "0 broken" in run(copy, f"{lint} --no-cache --no-logo")
