"""Tables and features of one's own: classes, labels that stand for none, several labels; what is wrong is told with its line."""

import json
import shlex
from pathlib import Path

import datasets
import numpy as np
import pytest
from own_files import SPLITS, sentence, write_rows
from refusals import refused
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from tasks.config.request import parsed
from tasks.data import DataError, DataUnavailable
from tasks.data.read import own
from tasks.data.read.guess import guess
from tasks.data.read.labelled import joined
from tasks.data.records import Example

TABLE = [('Good, "really"\nyes', "so", "10"), ("Bad", "thus", "2"), ("Fine", "hence", "10"), ("Poor", "ergo", "2")]


def write_table(folder, rows, *splits):
    """Of all splits unless some are named."""
    for split in splits or SPLITS:
        write_rows(folder, f"{split}.csv", [("premise", "hypothesis", "stars"), *rows])


def test_a_table_its_classes_and_their_order(tmp_path, opened):
    folder = tmp_path / "own"
    write_table(folder, TABLE)
    (folder / "test.txt").write_text("other texts beside a split\n")
    found = opened("table", path=str(folder), text=["premise", "hypothesis"], label="stars")
    assert found.about == {"classes": ["2", "10"], "fields": ["premise", "hypothesis"]}
    assert found.read(None)["train"][:2] == [Example(('Good, "really" yes', "so"), 1), Example(("Bad", "thus"), 0)]
    assert found.shortfalls == ("own data",)
    one = opened("table", path=str(folder), text="hypothesis", label="stars", classes=["10", "2"])
    assert one.read(None)["test"][0] == Example(("so",), 0) and one.about["classes"] == ["10", "2"]
    for split in ("train", "dev"):
        (folder / f"{split}.csv").unlink()
    assert list(opened("table", path=str(folder), text="premise", label="stars").read(None)) == ["test"]
    kinds = datasets.Features(label=datasets.ClassLabel(names=["bad", "good"]))
    rows = [{"label": 1}, {"label": -1}, {"label": None}]
    datasets.Dataset.from_list(rows, features=kinds).to_parquet(tmp_path / "a.parquet")
    assert [row.cells for row in own.rows(tmp_path / "a.parquet", ["label"])] == [("good",), ("-1",), ("",)]


def test_what_is_wrong_with_a_table_is_told_with_its_line(tmp_path, opened):
    folder = tmp_path / "own"

    def wrong(key, value=None, path=folder, text="premise", kind=DataError, **fields):
        with refused(kind, key=key, value=value, **fields):
            opened("table", path=path and str(path), text=text, label="stars")

    write_table(folder, TABLE)
    write_table(folder, [*TABLE, ("New", "x", "3")], "test")
    wrong("test.csv", "3", line=7, says="one of 2, 10")  # a cell has two lines
    write_table(folder, [*TABLE, ("New", "x")], "test")
    wrong("test.csv", 2, line=7)
    wrong("train.csv", ["review"], text="review", line=1, says="premise, hypothesis, stars")
    (folder / "dev.tsv").write_text("x")
    wrong("dev", "dev.csv, dev.tsv")
    (folder / "dev.tsv").unlink()
    (folder / "dev.csv").rename(folder / "development.csv")
    for looked in ("dev|valid", "*.csv, *.tsv", "development.csv"):
        wrong("data.path", ["dev"], kind=DataUnavailable, says=looked)
    write_table(tmp_path, [(sentence(i), "x", sentence(-i - 1 + 999)) for i in range(9)], "all")
    wrong("all.csv", 9, tmp_path / "all.csv")
    (tmp_path / "x.doc").write_bytes(b"PAR1")
    for name, kind in (("x.doc", DataError), ("none", DataUnavailable)):
        wrong("data.path", str(tmp_path / name), tmp_path / name, kind=kind)
    wrong("data.path", path=None, kind=DataUnavailable)


MISSING = [("ab-", ["-"]), (["a", "b", "nan"], ["nan"]), (["-1", "0", "1"], ["-1"])]
MISSING += [(["", "x", "y"], [""]), (["<NA>", "x", "?", "y"], ["<NA>", "?"]), (["-1", "1"], []), (["none", "a"], [])]


@pytest.mark.parametrize("names, missing", MISSING)
def test_labels_that_stand_for_none_are_dropped_or_kept_as_the_error_says(tmp_path, opened, names, missing):
    write_table(tmp_path, [(f"text {i}", "x", names[i % len(names)]) for i in range(12)])
    node = {"path": str(tmp_path), "text": "premise", "label": "stars"}
    if not missing:
        assert opened("table", **node).about["classes"] == sorted(names)
        return
    with refused(DataError, key="train.csv", value=missing, line=2 + min(map(list(names).index, missing))) as caught:
        opened("table", **node)
    drop, keep = (shlex.split(one)[-1] for one in caught.value.next_step.split("; or"))
    for option, classes in ((drop, [n for n in names if n not in missing]), (keep, sorted(names))):
        chosen = parsed(option)
        found = opened("table", **node, **{chosen.key.removeprefix("data."): chosen.value})
        assert found.about["classes"] == classes and len(found.read(None)["test"]) == 12 * len(classes) // len(names)
        assert any("is in data.drop" in told for told in found.shortfalls) == (option == drop)
    write_table(tmp_path, [("text", "x", "-2"), ("other", "x", names[0])], "test")
    with refused(DataError, key="test.csv", value="-2", line=2, says="data.drop="):
        opened("table", **node, drop=missing)
    if missing == ["-1"]:
        one, other = opened("table", **node, drop=[-1, "-2"]), opened("table", **node, drop=[-1, -2], classes=[0, 1])
        assert one.about["classes"] == other.about["classes"]


def advised(error, path):
    """The options that the next step of an error names for data=features."""
    words = [w for w in shlex.split(error.next_step.partition("; or")[0]) if w.startswith("data.")]
    return {one.key.removeprefix("data."): one.value for one in map(parsed, words)} | {"path": str(path)}


@pytest.mark.parametrize("sign", ["|", ";", ",", None])
def test_joined_and_listed_labels_are_read_as_several_when_asked(tmp_path, opened, sign):
    names = [("sun",), ("sun", "rain"), ("rain", "snow"), ("snow",)]
    rows = [(sentence(i), names[i % 4]) for i in range(200)]
    if sign:
        path = tmp_path / "own.csv"
        write_rows(tmp_path, "own.csv", [("text", "tags"), *((t, sign.join(labels)) for t, labels in rows)])
        with refused(DataError, key="own.csv", value=sign.join(names[1]), line=3) as caught:
            opened("table", path=str(path), text="text", label="tags")
        (_, keep) = caught.value.next_step.split("; or ")
        classes = parsed(shlex.split(keep)[-1]).value
        assert len(opened("table", path=str(path), text="text", label="tags", classes=classes).about["classes"]) == 4
        options = advised(caught.value, path)
    else:
        path = tmp_path / "own.jsonl"
        path.write_text("".join(json.dumps({"text": t, "tags": list(labels)}) + "\n" for t, labels in rows))
        with pytest.raises(DataError, match="several labels"):
            guess(str(path), {})
        options = {"path": str(path), "text": "text", "label": ["tags"]}
    found = opened("features", **options)
    splits = found.read(None)
    assert found.about["labels"] == ["rain", "snow", "sun"] and sum(map(len, splits.values())) == 200
    train = splits["train"]
    assert train.labels.sum(1).mean() == pytest.approx(1.5, abs=0.1) and train.features.shape[1] > 100
    whole = {tuple(y) for part in splits.values() for y in part.labels.astype(int).tolist()}
    assert whole == {(0, 0, 1), (1, 0, 1), (1, 1, 0), (0, 1, 0)}
    countries = ["Korea, Republic of", "Iran, Islamic Republic", "Peru"]
    for one in (countries, ["1,5", "2", "3"], ["a|", "a"], ["yes", "no"]):
        assert joined(one) == "", "classes with a sign of their own"


@pytest.mark.parametrize("cell", ["['a', \"b'c\"]", "('a',)", "{'b', 'a'}", "[1, 2]", "[]", "['a'\n 'b']"])
def test_a_list_written_as_a_text_is_refused(cell, tmp_path, opened):
    """By each reader; a name in brackets is a name."""
    write_rows(tmp_path, "own.csv", [("text", "tags"), ("one word", "[a]"), *((sentence(i), cell) for i in range(9))])
    path = str(tmp_path / "own.csv")
    assert next(own.several(Path(path), "text", "tags", None))[2] == ["[a]"]
    write_rows(tmp_path, "own.csv", [("text", "tags"), *((sentence(i), [cell, "['c']"][i % 2]) for i in range(9))])
    said = "save the table as .jsonl or .parquet"
    for ask, told in (
        (lambda: opened("table", path=path, text="text", label="tags"), said),
        (lambda: list(own.several(Path(path), "text", "tags", None)), said),
        (lambda: guess(path, {}), "several labels"),
    ):
        with refused(DataError, says=told):
            ask()


KNOWN = [(0, None), (1, "(0.5%) are also in train"), (2, "WARNING")]
KNOWN += [(200, "(100.0%) are also in train")]


@pytest.mark.parametrize("kind", ["files", "table"])
@pytest.mark.parametrize("same, said", KNOWN)
def test_texts_of_a_test_set_that_stand_in_train_are_counted(tmp_path, opened, kind, same, said):
    options = {"source": "premise", "target": "stars"} if kind == "files" else {"text": "premise", "label": "stars"}
    rows = {s: [(f"{s} text {i}", "x", i % 2) for i in range(200)] for s in SPLITS}
    rows["test"][:same] = rows["train"][-same:] if same else []
    rows["dev"][:3] = rows["test"][-3:]
    for split in SPLITS:
        write_table(tmp_path / "own", rows[split], split)
    for _ in range(2):  # read, then remembered
        found = opened(kind, path=str(tmp_path / "own"), **options)
        found.read(None)
        told = [note for note in found.notes if "also in train" in note and " test " in note]
        assert len(told) == (same > 0) and all(said in note for note in told)
        assert ("WARNING" in "".join(told)) == (same >= 2)
        assert any(note.startswith("3 of 200 test") and "also in dev. WARNING" in note for note in found.notes)


def documents(n=240):
    rng = np.random.default_rng(3)
    x = np.round(rng.normal(size=(n, 5)) * (rng.random((n, 5)) < 0.6), 3)
    return x, (x[:, :3] > -0.5) & (rng.random((n, 3)) < 0.8)


def test_every_format_of_features_is_the_same_data_and_svmlight_is_sklearns(tmp_path, opened, write):
    x, y = documents()
    names = ["sun", "rain", "snow"]
    (tmp_path / "svmlight").mkdir()
    for split, part in (("train", slice(0, 160)), ("test", slice(160, None))):
        rows = [",".join([*map(str, a), *map(str, b)]) for a, b in zip(x[part], y[part].astype(int))]
        head = [f"@attribute f{i} numeric" for i in range(5)] + [f"@attribute {n} {{0,1}}" for n in names]
        write(tmp_path / "arff", {f"{split}.arff": ["@relation own", *head, "@data", *rows]})
        write(tmp_path / "csv", {f"{split}.csv": [",".join([*(f"f{i}" for i in range(5)), *names]), *rows]})
        file = str(tmp_path / "svmlight" / f"{split}.svmlight")
        dump_svmlight_file(x[part], y[part].astype(int), file, multilabel=True, zero_based=False)
    read = {kind: opened("features", path=str(tmp_path / kind), label=names) for kind in ("arff", "csv")}
    read["svmlight"] = opened("features", path=str(tmp_path / "svmlight"))
    assert read["svmlight"].about["labels"] == ["0", "1", "2"] and read["csv"].about["labels"] == names
    theirs, _ = load_svmlight_file(str(tmp_path / "svmlight" / "test.svmlight"), multilabel=True)
    labelled = y[160:].any(1)
    mean, scale = x[:160][y[:160].any(1)].mean(0), x[:160][y[:160].any(1)].std(0)
    for found in read.values():
        test = found.read(None)["test"]
        np.testing.assert_allclose(test.features, (theirs.toarray()[labelled] - mean) / scale, atol=1e-9)
        assert (test.labels == y[160:][labelled]).all() and found.shortfalls == ("own data",)
    one = opened("features", path=str(tmp_path / "csv" / "train.csv"), label=names).read(None)
    assert set(one) == {"train", "test"} and 5 <= len(one["test"]) <= 30
    with refused(DataError, next_step="set data.label=[NAME,NAME,..]"):
        opened("features", path=str(tmp_path / "csv"))


# A value that would make a column's spread infinite, in every format, and what is wrong in one of them.
LARGE: list = [
    ("a.csv", "x,y,s,t\n1,2,0,1\n{},3,1,0\n", 3, "{}"),
    ("a.tsv", "x\ty\ts\tt\n1\t2\t0\t1\n{}\t3\t1\t0\n", 3, "{}"),
    ("a.svmlight", "1 1:1\n2 1:2 2:{}\n", 0, None),
    ("a.arff", "@attribute x real\n@attribute s {{0,1}}\n@attribute t {{0,1}}\n@data\n1,0,1\n{},1,0\n", 0, None),
]
BAD = [
    ("a.svmlight", "1,7 1:0.5\n", 0, None, "one of 1, 2"),
    ("a.svmlight", "1 1:0.5\n2 2=3\n", 0, None, ""),
    ("a.svmlight", "1 -2:1\n", 0, None, ""),
    ("a.svmlight", "1 1:0.5\n2 2:3 1:2 2:4\n", 0, None, "unique"),
    ("a.svmlight", "s 1:1\n", 0, None, "labels as numbers"),
    ("a.csv", "x,s,t\n1,0,1\nz,1,0\n", 3, "z", "number"),
    ("a.csv", "x,s,t\n1,0,1\n1,2,0\n", 3, "2", "0 or 1"),
    ("a.csv", "x,x,s,t\n1,2,0,1\n", 1, ["x"], "different"),
    ("a.csv", ",x,s,t\n1,2,0,1\n", 1, "", "a name"),
]


for value in ("1e308", "-1e160", "inf", "nan"):
    said = "between -1e+150 and 1e+150"
    BAD += [
        (*bad, text.format(value), n, v and v.format(value), said if (n, value) != (0, "nan") else "")
        for *bad, text, n, v in LARGE
    ]


@pytest.mark.parametrize("file, text, line, value, expected", BAD)
def test_what_is_wrong_with_features_is_told_with_its_line(tmp_path, opened, file, text, line, value, expected):
    (tmp_path / file).write_text(text)
    known = {} if value is None else {"value": value}
    with refused(DataError, key=file, line=line, says=expected, **known):
        opened("features", path=str(tmp_path / file), label=["1", "2"] if "svm" in file else ["s", "t"]).read(None)
