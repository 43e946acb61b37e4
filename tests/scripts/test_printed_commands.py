"""Commands that the program prints, such as next steps: all are found in the code, exist, and run as printed."""

import ast
import io
import random
import re
import shlex
import sys
from pathlib import Path

import pytest
from test_architecture import tracked

from repro import plugins
from repro.errors import ConfigError
from repro.identity import pair
from repro.store import elsewhere
from tasks.config import compose
from tasks.config.request import TRAIN, Request, parsed, settable
from tasks.data import DataError, open_data
from tasks.data.read.guess import guess
from tasks.use import find_cell

ROOT = Path(__file__).resolve().parents[2]
STRANGE = "a b & it's, (2) %"  # of a folder
COMMAND = re.compile(r"python (scripts/(\w+)\.py\b(?: (?:'[^']*'(?:\"'\"'[^']*')*|\"[^\"]*\"|[^\s;'\"`)]|[ ])*)?)")
QUOTING = ("shlex.quote", "shlex.join", "setting(", "naming(", "elsewhere(", "where", "place")
PLACE = re.compile(r"(paths\.\w+=|path=|plugins=|--root |--path |(predict|export|data)\.py )\[?$")


def printed() -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Every text in the code that is not a docstring: (place, text with X in place of values, [(text before, value)])."""
    found = []
    for file in tracked(*(f"{room}/*.py" for room in ("repro", "tasks", "scripts", "benchmarks", "sparse_attention"))):
        source = file.read_text(encoding="utf-8")
        if not re.search("scripts/|make [a-z]", source):
            continue
        tree = ast.parse(source)
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        first = [n.body[0] for n in ast.walk(tree) if isinstance(n, kinds)]
        skipped = {id(node.value) for node in first if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(inner) for inner in ast.walk(node)}
                text, values = "", []
                for part in node.values:
                    if isinstance(part, ast.Constant):
                        text += str(part.value)
                    else:
                        values.append((text, ast.unparse(part)))
                        text += "X"
                found.append((f"{file.name}:{node.lineno}", text, values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((f"{file.name}:{node.lineno}", node.value, []))
    for file in tracked("data/manifests/*.yaml", "*.jinja"):
        found.append((file.name, file.read_text(encoding="utf-8"), []))
    return found


def test_commands_in_messages_name_scripts_targets_and_options_that_exist():
    named = re.findall(r"^([\w%-]+):", (ROOT / "Makefile").read_text(), re.M)
    targets = [re.escape(t).replace("%", ".+") for t in named]
    commands = 0
    for place, text, values in printed():
        for script, words in re.findall(r"scripts/(\w+)\.py\b((?:(?!, )[^;`\n<])*)", text):
            assert (ROOT / "scripts" / f"{script}.py").is_file(), place
            page = (ROOT / "scripts" / f"{script}.py").read_text(encoding="utf-8")
            keys = [key for key in re.findall(r"(?<=\s)'?([a-z_.]+)=", words) if not settable(key)]
            keys += re.findall(r"--[a-z]+", words)
            assert {*keys} <= {*page.split(), "--help"}, (place, words)
            commands += 1
        for target in re.findall(r"(?:`|get: )make ([a-z][\w-]*)|\bmake ([a-z]+-[a-z][\w-]*)", text):
            assert any(re.fullmatch(one, "".join(target)) for one in targets), (place, target)
        if "scripts/" in text:  # what names files is quoted for a shell
            named = {value for before, value in values if PLACE.search(before)} - {"{cell}", "{name}"}
            assert all(any(q in value for q in QUOTING) for value in named), (place, named)
    assert commands > 30


def said(call, *arguments) -> str:
    """The message of the error that a call raises."""
    with pytest.raises((ConfigError, DataError)) as caught:
        call(*arguments)
    return getattr(caught.value, "next_step", "") or str(caught.value)


def words(message: str) -> tuple[str, list[str]]:
    """The script and the words of the command in a message."""
    line, name = COMMAND.search(message).groups()
    return name, shlex.split(line)[1:]


def test_commands_of_errors_are_read_as_they_were_meant_from_any_folder(tmp_path):
    store = tmp_path / STRANGE
    (store / "only").mkdir(parents=True)
    (store / "only" / "test.csv").write_text("text,label\na,b\n")
    for place in ("toy/softmax", "imdb/fusedmx", "nothing"):
        name, given = words(said(find_cell, store, place))
        with compose.composer() as composed:
            config = composed(Request.read(given, TRAIN).overrides)
        assert name == "train" and config["paths"]["outputs"] == str(store)
    name, (cell, path) = words(said(guess, str(store / "only"), {}))
    assert (name, cell, parsed(path).value) == ("evaluate", "CELL", str(store / "only"))
    name, (what, of, option, root) = words(said(open_data, {"name": "imdb"}, store))
    assert (name, what, of, option, root) == ("data", "fetch", "imdb", "--root", str(store))


@pytest.mark.parametrize("file", ["mine.py", "/x/mine-2.py", f"/x/{STRANGE}/mine.py", "ü [1].py", 'a"b.py'])
def test_plugins_and_stores_are_named_so_that_every_command_reads_them(file):
    (word,) = shlex.split(plugins.naming([file, "b.py"]))
    assert plugins.listed(pair(word)[1]) == parsed(word).value == [file, "b.py"]
    assert plugins.naming([]) == ""
    (word,) = shlex.split(elsewhere(Path(file).with_suffix("")))
    assert pair(word)[1] == parsed(word).value == str(Path(file).with_suffix(""))


@pytest.mark.slow
def test_commands_of_a_trial_an_export_and_a_sweep_run_as_printed(command, isolated, tmp_path, capsys, monkeypatch):
    place = tmp_path / STRANGE
    place.mkdir()
    monkeypatch.setenv("SPARSE_ATTENTION_DATA", str(isolated / "data"))
    rng, words_ = random.Random(0), [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    rows = [f"{' '.join(rng.choices(words_, k=8))} {'good' if i % 2 else 'bad'},{i % 2}" for i in range(300)]
    (place / "r.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    function = "def printedmax(scores, mask):\n    return (scores.masked_fill(~mask, float('-inf'))).softmax(-1)\n"
    register = "import sparse_attention as sa\n\n\n@sa.register('printedmax', summary='ours')\n"
    (place / "m.py").write_text(register + function)
    store, own = f"paths.outputs={place}", plugins.naming([str(place / "m.py")])
    small = "train.max_epochs=1 model.embed_dim=8 model.hidden_dim=8 runtime.workers=1".split()
    small += [store, *shlex.split(own)]

    def run(line: str, typed: str = "") -> str:
        name, given = words(line)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
        monkeypatch.chdir(tmp_path)
        assert command(name, *given) == 0, line
        return capsys.readouterr().out

    assert command("try", f"data.path={place / 'r.csv'}", "mapping=printedmax", *small) == 0
    told = capsys.readouterr().out
    predict, export, again = re.findall(r"^  .*python scripts/.*$", told, re.M)
    assert "words" in run(predict, "the good number\n")
    assert "1 cells run" in run(again.replace("seed=1,2,3", "seed=1,2"))
    made = run(export)
    assert run(made.partition("next: ")[2].replace(" < input", ""), "the good number\n").strip() in ("0", "1")
    swept = ("-m", "task=toy", "data.limits.train=40", "mapping=softmax", "sweep=s", *small[:1], store)
    assert command("train", *swept) == 0
    (line,) = re.findall(r"^again at any time: (.*)$", capsys.readouterr().out, re.M)
    assert "Comparison: sweep=s" in run(line)
