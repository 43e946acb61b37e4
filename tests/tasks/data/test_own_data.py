"""Data of one's own through the front door: every layout and format gives the same records; what is wrong is told with its place."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import shlex
from types import SimpleNamespace

import datasets
import numpy as np
import pandas
import pytest
from refusals import refused
from sklearn.datasets import dump_svmlight_file, load_svmlight_file
from small_vqa2 import COLOURS, picture

from tasks.commands.try_data import check_file
from tasks.config.request import Request, parsed
from tasks.data import DataError, DataUnavailable
from tasks.data.read import own
from tasks.data.read.guess import guess
from tasks.data.read.splits import near_pairs
from tasks.data.records import Example, Pair

PAIRS = [("un chat", "a cat"), ('il dit "non', 'he says "no'), ("deux, trois", "two, three")]
SPLITS = ("train", "dev", "test")


def write_rows(folder, name, rows):
    """A csv file with the csv module's own quoting."""
    folder.mkdir(exist_ok=True)
    with open(folder / name, "w", newline="") as stream:
        csv.writer(stream).writerows(rows)


def lay(folder, layout, pairs=PAIRS):
    """The pairs as the three splits of a folder."""
    folder.mkdir()
    records = [{"id": 3, "fr": s, "en": t} for s, t in pairs]
    tabbed = "".join(f"{s}\t{t}\n" for s, t in pairs).encode()
    files = {
        "suffix": {lang: "".join(f"{one[lang]}\n" for one in records).encode() for lang in ("fr", "en")},
        "tsv": {"tsv": tabbed},
        "tsv.gz": {"tsv.gz": gzip.compress(tabbed)},
        "jsonl": {"jsonl": "".join(f"{json.dumps(one)}\n" for one in records).encode()},
        "json": {"json": json.dumps(records).encode()},
    }
    for split in SPLITS:
        for ending, raw in files.get(layout, {}).items():
            (folder / f"{split}.{ending}").write_bytes(raw)
        if layout == "csv":
            write_rows(folder, f"{split}.csv", [("n", "en", "fr"), *((1, t, s) for s, t in pairs)])
    return str(folder)


@pytest.mark.parametrize("layout", ["suffix", "tsv", "tsv.gz", "jsonl", "json", "csv"])
def test_every_layout_of_pairs_gives_the_same_records(tmp_path, opened, composed, layout):
    path = lay(tmp_path / "own", layout)
    found = opened("files", path=path, source_lang="fr", target_lang="en")
    splits = {s: list(records) for s, records in found.read(None).items()}
    assert splits == {s: [Pair(a, (b,)) for a, b in PAIRS] for s in SPLITS}
    assert found.about == {"source_lang": "fr", "target_lang": "en"}
    assert found.shortfalls == ("own data",) and found.stands_for is None
    test = next((tmp_path / "own").glob("test.*"))
    test.write_bytes(test.read_bytes() + b"\n")
    after = opened("files", path=path, source_lang="fr", target_lang="en").fingerprint
    assert {s for s in SPLITS if found.fingerprint[s] != after[s]} == {"test"}, "training knows nothing of it"
    assert composed(["task=translation"])["data"]["limits"] == {"train": 12000, "dev": 500, "test": 500}
    of_setting = ["task=translation", "data=files", f"data.path={path}"]  # whose limits are not those of your own data
    assert composed(of_setting)["data"]["limits"] == dict.fromkeys(SPLITS)
    assert composed([*of_setting, "data.limits.dev=3"])["data"]["limits"] == {"train": None, "dev": 3, "test": None}


def save(place, form):
    """300 pairs and 300 texts with a class as another program writes them; returns the path that is given, and the rows."""
    pairs = [{"fr": f"un chat {sentence(i)}", "en": f"a cat {sentence(-1 - i + 999)}"} for i in range(300)]
    named = [{"text": pair["en"], "label": ("bad", "good")[i % 2]} for i, pair in enumerate(pairs)]
    place.mkdir()
    if form == "translation":
        (place / "a.jsonl").write_text("".join(json.dumps({"id": 1, "translation": pair}) + "\n" for pair in pairs))
    elif form in ("two files", "their folder"):
        for lang in pairs[0]:
            (place / f"x.y.{lang}").write_text("".join(pair[lang] + "\n" for pair in pairs))
        (place / "x.y.ids").write_text("1\n")
        return place / "x.y" if form == "two files" else place, pairs
    elif form == "__label__":
        (place / "a.txt").write_text("".join(f"__label__{row['label']} {row['text']}\n" for row in named))
    elif form == "folders":
        for i, row in enumerate(named):
            (place / row["label"]).mkdir(exist_ok=True)
            (place / row["label"] / f"{i}.txt").write_text(row["text"] + "\n")
        return place, named
    elif form == "parquet":
        pandas.DataFrame(pairs).to_parquet(place / "a.parquet")
    elif form == "Excel's Unicode text":
        quoted = pandas.DataFrame(pairs).to_csv(sep="\t", index=False, quoting=csv.QUOTE_ALL)
        (place / "a.txt").write_text(quoted, encoding="utf-16")
    else:
        kinds = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
        found = datasets.Dataset.from_list(named, features=kinds)
        if form == "saved":
            datasets.DatasetDict(train=found, validation=found, test=found).save_to_disk(place)
            return place, named
        found.to_parquet(place / "a.parquet")
    return next(place.iterdir()), named if form in ("__label__", "classes of parquet") else pairs


FORMS = ["translation", "two files", "their folder", "parquet", "Excel's Unicode text", "__label__", "folders"]
FORMS += ["classes of parquet", "saved"]


@pytest.mark.parametrize("form", FORMS)
def test_files_that_other_programs_write_are_guessed_and_read(tmp_path, opened, form):
    path, rows = save(tmp_path / "own", form)
    check_file(Request.read([f"data.path={path}"]))
    options = guess(str(path), {}).options
    data = opened(options["name"], path=str(path), **{k: v for k, v in options.items() if k != "name"})
    splits = data.read(None)
    records, classes = (r for s in SPLITS for r in splits[s]), data.about.get("classes")
    found = {(r.source, *r.references) if isinstance(r, Pair) else (*r.texts, classes[r.label]) for r in records}
    order = [options["source"], options["target"]] if "source" in options else ["text", "label"]
    assert found == {tuple(row[key] for key in order) for row in rows} and min(map(len, splits.values())) > 1


# as R writes a tsv file, as pandas does, and texts with quotes of their own
QUOTES = {
    "R": ('"text"\t"label"', '"He said ""no"""\t{}', 'He said "no"'),
    "numbers": ('"text"\t"label"', '"two words"\t{}', "two words"),
    "pandas": ("text\tlabel", '"He said ""no"""\t{}', 'He said "no"'),
    "plain": ("text\tlabel", '"Hello."\t{}', '"Hello."'),
    "mixed": ("text\tlabel", '"He said ""no"""\t{}\nsix" tall\t1', '"He said ""no"""'),
}


@pytest.mark.parametrize("head, line, text", QUOTES.values(), ids=QUOTES)
def test_cells_of_a_tsv_are_in_quotes_if_the_file_shows_it(tmp_path, head, line, text):
    (path := tmp_path / "a.tsv").write_text("\n".join([head, *(line.format(i) for i in range(60))]) + "\n")
    found = [row.cells for row in own.rows(path, ["text", "label"])]
    assert found[0] == (text, "0") and len(found) in (60, 120) and guess(str(path), {"text": "text", "label": "label"})


def class_folders(place, texts=40):
    """The layout of the IMDB archive."""
    for split, kinds in (("train", ("neg", "pos", "unsup")), ("test", ("neg", "pos"))):
        for n, kind in enumerate(kinds):
            (place / split / kind).mkdir(parents=True)
            for i in range(10 * texts if split == "train" else texts):
                (place / split / kind / f"{i}_7.txt").write_text(f"{kind} {sentence(2000 * n + i)} {split}")
        (place / split / f"urls_{kinds[0]}.txt").write_text("http://a.b/c\n")
    (place / "imdb.vocab").write_text("the\n")
    return str(place)


def test_class_folders_without_dev_and_with_texts_without_a_class(tmp_path, opened):
    path = class_folders(tmp_path / "aclImdb")
    check_file(Request.read([f"data.path={path}"]))
    found = guess(path, {})
    assert found.options == {"name": "table", "text": ["text"], "label": "label"} and "(label: neg, pos)" in found.said
    one = opened("table", path=path, text="text", label="label", limits={"test": 20})
    splits = one.read(None)
    assert list(splits) == list(SPLITS) and len(splits["test"]) == 20 and 50 <= len(splits["dev"]) <= 110
    assert 650 < len(splits["train"]) + len(splits["dev"]) <= 800 and not {*splits["train"]} & {*splits["dev"]}
    assert "400 texts of train/unsup left out: they have no class" in one.shortfalls
    assert one.about["classes"] == ["neg", "pos"] and any("dev is a tenth of train" in note for note in one.notes)
    for records in splits.values():  # each split has both classes, also after a limit
        assert 0.25 < sum(r.label for r in records) / len(records) < 0.75
    assert all(r.texts[0].startswith(("neg", "pos")[r.label]) for r in splits["train"])


@pytest.mark.parametrize("layout", ["suffix", "tsv", "csv"])
def test_a_folder_of_pairs_without_dev(tmp_path, opened, layout):
    pairs = [(f"un chat {sentence(i)}", f"a cat {sentence(-i - 1 + 999)}") for i in range(300)]
    path = lay(tmp_path / "own", layout, pairs)
    whole = opened("files", path=path, source_lang="fr", target_lang="en")
    for file in (tmp_path / "own").glob("dev*"):
        file.unlink()
    without = opened("files", path=path, source_lang="fr", target_lang="en")
    splits = without.read(None)
    assert 10 <= len(splits["dev"]) <= 60 and len(splits["train"]) + len(splits["dev"]) > 280
    assert [(r.source, r.references[0]) for r in splits["test"]] == pairs
    same = {s for s in SPLITS if whole.fingerprint[s] == without.fingerprint[s]}
    assert same == {"test"} and without.fingerprint["train"] != without.fingerprint["dev"]


def test_damaged_parquet_quotes_without_a_header_and_a_spreadsheet_are_refused(tmp_path, opened):
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(99))
    with refused(DataError, key="a.parquet"):
        opened("table", path=str(tmp_path / "a.parquet"))
    pandas.DataFrame([{"text": "a", "label": {"x": 1}}]).to_parquet(tmp_path / "a.parquet")
    with refused(DataError, key="a.parquet", value={"x": 1}, says="record 1: label is"):
        opened("table", path=str(tmp_path / "a.parquet"))
    (tmp_path / "a.txt").write_text("__label__a b\n__label__a __label__b c\n")
    with refused(DataError, key="a.txt", line=2):
        opened("table", path=str(tmp_path / "a.txt"))
    (tmp_path / "a.tsv").write_text('"un ""chat"""\ta cat\n' * 9)
    with refused(DataError, key="a.tsv", line=1, says="add a header line"):
        opened("files", path=str(tmp_path / "a.tsv"))
    (path := tmp_path / "my data.xlsx").write_bytes(b"PK\x03\x04")
    step = f"convert it: libreoffice --headless --convert-to csv '{path}'"
    with refused(DataError, key="data.path", next_step=step):
        opened("table", path=str(path))


def test_names_of_columns_and_a_blank_side(tmp_path, opened):
    folder = tmp_path / "own"
    folder.mkdir()
    for split in SPLITS:
        (folder / f"{split}.tsv").write_text("headline\tn\tarticle\nShort\t1\tA long text\n\t2\tNo headline\n")
    found = opened("files", path=str(folder), source="article", target="headline")
    assert list(found.read(None)["dev"]) == [Pair("A long text", ("Short",))]
    assert "1 rows of train.tsv left out: a blank text" in found.shortfalls
    lay(tmp_path / "langs", "suffix", [("un", "one"), (" ", "two"), ("trois", "three")])
    found = opened("files", path=str(tmp_path / "langs"), source_lang="fr")
    assert [p.source for p in found.read(None)["test"]] == ["un", "trois"]
    assert "1 lines of test.fr and test.en left out: a blank text" in found.shortfalls


def sentence(i):
    rng = np.random.default_rng(i)
    return " ".join(f"w{chr(97 + a)}{chr(97 + b)}" for a, b in rng.integers(26, size=(9, 2)))


def test_one_file_is_split_by_content_and_equal_texts_stay_together(tmp_path, opened):
    path = tmp_path / "own.tsv"
    lines = [f"{sentence(i % 300)} {i // 300 or ''}\ttext {i}" for i in range(900)]  # thrice, but for a number
    path.write_text("\n".join(lines) + "\n")
    splits = opened("files", path=str(path)).read(None)
    assert sum(map(len, splits.values())) == 900 and min(map(len, splits.values())) >= 3
    owner = {p.source: s for s in SPLITS for p in splits[s]}
    texts = list(owner)
    assert all(owner[texts[i]] == owner[texts[k]] for i, k in near_pairs(texts)[0].T.tolist())
    again = opened("files", path=str(path)).read(None)  # the kept split
    assert all(list(again[s]) == list(splits[s]) for s in SPLITS)
    path.write_text("\n".join(lines[:6]) + "\n")
    with refused(DataError, key="own.tsv", says="6 different texts"):
        opened("files", path=str(path))
    rules = (own.sources({own.WHOLE: (path,)}, texts=["a", one])["dev"][0] for one in "eé")
    assert [*rules] == [1, 2]  # a file that another rule split before is encoded again


def lettered(i):
    return f"w{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{chr(97 + i // 676)}"


def test_texts_that_are_alike_are_split_with_a_warning(tmp_path, opened):
    path, words = tmp_path / "own.tsv", ["film", "plot", "scene", "music", "story", "hero"]

    def noted(lines):
        path.write_text("".join(lines))
        found = opened("files", path=str(path))
        (note,) = found.notes
        return note, found.read(None)

    lines = [f"{' '.join([*words[i % 6 :], *words[: i % 6], lettered(i)])}\ttext {i}\n" for i in range(600)]
    for _ in range(2):  # made, then read from the stored split
        note, splits = noted([*lines, *(line.upper() for line in lines)])
        assert sum(map(len, splits.values())) == 1200 and 20 < len(splits["dev"]) < 120
        owner = {p.source: s for s in SPLITS for p in splits[s]}
        assert all(owner[source] == owner[source.upper()] for source in list(owner))
        assert "WARNING" in note and "of 600 different texts share half of their words" in note
        assert int(note.split("WARNING: ")[1].split()[0]) > 300
    # each shares most of its words with the ones before: groups end somewhere, and there texts are left out
    note, _ = noted(f"{' '.join(map(lettered, range(i, i + 24)))}\ttext {i}\n" for i in range(800))
    assert "WARNING" in note and " of 800 different texts share" in note and "left out. To avoid this" in note
    note, _ = noted(f"{sentence(i)}\ttext {i}\n" for i in range(400))
    assert "split by content: sources that" in note and "WARNING" not in note
    with refused(DataError, key="own.tsv", says="300 different texts"):
        noted(lines[:300])  # too few to say that it is due to their likeness


def test_many_unknown_tokens_are_warned_of(tmp_path, opened):
    from tasks.cells import _training

    path = tmp_path / "own.tsv"
    path.write_text("".join(f"{sentence(i)}\ttext {i}\n" for i in range(300)))
    data = opened("files", path=str(path))
    none = SimpleNamespace(sha256="0", splits={})
    facts = _training.facts(data, none, unknown={"dev.source": 0.34, "dev.target": 0.1, "train.source": 0.02})
    assert "WARNING: the vocabulary lacks 34% of the tokens of dev.source" in facts["notes"][-1]
    assert not any("WARNING" in n for n in _training.facts(data, none, unknown={"dev.source": 0.1})["notes"])
    for subword in ("none", "bpe"):
        encode, lacks = {"encode": {"subword": subword}}, {"dev.source": 0.34}
        none.folder = tmp_path
        made = _training.prepared(encode, data, none, lambda *_: None, None, unknown=lacks)
        assert ("encode.subword=sentencepiece" in made.facts["notes"][-1]) == (subword == "none")


TABLE = [('Good, "really"\nyes', "so", "10"), ("Bad", "thus", "2"), ("Fine", "hence", "10"), ("Poor", "ergo", "2")]


def write_table(folder, split, rows):
    write_rows(folder, f"{split}.csv", [("premise", "hypothesis", "stars"), *rows])


def test_a_table_its_classes_and_their_order(tmp_path, opened):
    folder = tmp_path / "own"
    for split in SPLITS:
        write_table(folder, split, TABLE)
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

    for split in SPLITS:
        write_table(folder, split, TABLE)
    write_table(folder, "test", [*TABLE, ("New", "x", "3")])
    wrong("test.csv", "3", line=7, says="one of 2, 10")  # a cell has two lines
    write_table(folder, "test", [*TABLE, ("New", "x")])
    wrong("test.csv", 2, line=7)
    wrong("train.csv", ["review"], text="review", line=1, says="premise, hypothesis, stars")
    (folder / "dev.tsv").write_text("x")
    wrong("dev", "dev.csv, dev.tsv")
    (folder / "dev.tsv").unlink()
    (folder / "dev.csv").rename(folder / "development.csv")
    for looked in ("dev.csv, or dev.tsv", "valid.csv", "development.csv"):
        wrong("data.path", ["dev"], kind=DataUnavailable, says=looked)
    write_table(tmp_path, "all", [(sentence(i), "x", sentence(-i - 1 + 999)) for i in range(9)])
    wrong("all.csv", 9, tmp_path / "all.csv")
    (tmp_path / "x.doc").write_bytes(b"PAR1")
    for name, kind in (("x.doc", DataError), ("none", DataUnavailable)):
        wrong("data.path", str(tmp_path / name), tmp_path / name, kind=kind)
    wrong("data.path", path=None, kind=DataUnavailable)


JSON = [([4.0, 5], ["4", "5"]), ([True, False], ["false", "true"]), ([0.5, "x"], ["0.5", "x"])]


@pytest.mark.parametrize("labels, classes", JSON)
def test_numbers_and_booleans_of_json_are_labels(tmp_path, opened, labels, classes):
    rows = [{"text": f"no {i}" if i else None, "label": labels[i % 2]} for i in range(8)]
    for split in SPLITS:
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = opened("table", path=str(tmp_path))
    assert found.about["classes"] == classes and len(found.read(None)["dev"]) == 7
    assert "1 rows of dev.jsonl left out: a blank text" in found.shortfalls


MISSING = [("ab-", ["-"]), (["a", "b", "nan"], ["nan"]), (["-1", "0", "1"], ["-1"])]
MISSING += [(["<NA>", "x", "?", "y"], ["<NA>", "?"]), (["-1", "1"], []), (["none", "a"], [])]


@pytest.mark.parametrize("names, missing", MISSING)
def test_labels_that_stand_for_none_are_dropped_or_kept_as_the_error_says(tmp_path, opened, names, missing):
    for split in SPLITS:
        write_table(tmp_path, split, [(f"text {i}", "x", names[i % len(names)]) for i in range(12)])
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
    write_table(tmp_path, "test", [("text", "x", "-2"), ("other", "x", names[0])])
    with refused(DataError, key="test.csv", value="-2", line=2, says="data.drop="):
        opened("table", **node, drop=missing)
    if missing == ["-1"]:
        one, other = opened("table", **node, drop=[-1, "-2"]), opened("table", **node, drop=[-1, -2], classes=[0, 1])
        assert one.about["classes"] == other.about["classes"]


def advised(error, path):
    """The options that the next step of an error names for data=features."""
    words = [w for w in shlex.split(error.next_step.partition("; or")[0]) if w.startswith("data.")]
    return {one.key: one.value for one in map(parsed, words)} | {"data.path": str(path)}


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
    else:
        path = tmp_path / "own.jsonl"
        path.write_text("".join(json.dumps({"text": t, "tags": list(labels)}) + "\n" for t, labels in rows))
        with pytest.raises(DataError, match="several labels") as caught:
            guess(str(path), {})
    found = opened("features", **{k.removeprefix("data."): v for k, v in advised(caught.value, path).items()})
    splits = found.read(None)
    assert found.about["labels"] == ["rain", "snow", "sun"] and sum(map(len, splits.values())) == 200
    train = splits["train"]
    assert train.labels.sum(1).mean() == pytest.approx(1.5, abs=0.1) and train.features.shape[1] > 100
    whole = {tuple(y) for part in splits.values() for y in part.labels.astype(int).tolist()}
    assert whole == {(0, 0, 1), (1, 0, 1), (1, 1, 0), (0, 1, 0)}
    for one in (
        ["Korea, Republic of", "Iran, Islamic Republic", "Peru"],
        ["1,5", "2", "3"],
        ["a|", "a"],
        ["yes", "no"],
    ):
        assert own.joined(one) == "", "classes with a sign of their own"


def test_equal_splits_are_a_note_under_the_table(tmp_path, opened):
    def notes():
        found = opened("table", path=str(tmp_path / "own"), text="premise", label="stars")
        return [note for note in found.notes if "same" in note]

    write_table(tmp_path / "own", "train", TABLE)
    for split in ("dev", "test"):
        write_table(tmp_path / "own", split, [*TABLE, (f"Of {split}", "x", "2")])
    assert notes() == []
    write_table(tmp_path / "own", "test", TABLE)
    assert notes() == ["1 split has the same content as train (test.csv): its scores show what was memorised"]
    write_table(tmp_path / "own", "dev", TABLE)
    assert len(notes()) == 3


KNOWN = [(0, None), (1, "1 of 200 test texts (0.5%) are also in train"), (2, "WARNING")]
KNOWN += [(200, "200 of 200 test texts (100.0%)")]


@pytest.mark.parametrize("kind", ["files", "table"])
@pytest.mark.parametrize("same, said", KNOWN)
def test_texts_of_a_test_set_that_stand_in_train_are_counted(tmp_path, opened, kind, same, said):
    options = {"source": "premise", "target": "stars"} if kind == "files" else {"text": "premise", "label": "stars"}
    rows = {s: [(f"{s} text {i}", "x", i % 2) for i in range(200)] for s in SPLITS}
    rows["test"][:same] = rows["train"][-same:] if same else []
    for split in SPLITS:
        write_table(tmp_path / "own", split, rows[split])
    for _ in range(2):  # read, then remembered
        found = opened(kind, path=str(tmp_path / "own"), **options)
        found.read(None)
        told = [note for note in found.notes if "also in train" in note]
        assert len(told) == (same > 0) and all(said in note for note in told)
        assert ("WARNING" in "".join(told)) == (same >= 2)


DAMAGED = [
    ("csv", "fr,en,fr\na,b,c\n", 1, ["fr"], ""),
    ("jsonl", '{"fr": "a", "en": "b"}\n{"fr": "{a}", "en": "b", "fr": "c"}\n', 2, None, "'fr' twice"),
    (
        "json",
        '[{"fr": "en:", "en": "b"},\n {"x": {"fr": [1]}, "fr": "a",\n "en": "b", "fr": "c"}]',
        0,
        None,
        "{'x': {'fr",
    ),
    ("tsv", "a\tb\na b\n", 2, 1, ""),
    ("tsv", "a\tb\nc\td\te\n", 2, 3, ""),
    ("jsonl", '{"fr": "a", "en": "b"}\n{"fr": "a"}\n', 2, ["en"], ""),
    ("jsonl", '{"fr": "a", "en": ["b"]}\n', 1, ["b"], "en is"),
    ("json", '[{"fr": "a", "en": "b"}, {"fr": "a"}]', 0, ["en"], "record 2"),
    ("json", '{"fr": "a"}', 0, None, "not a list"),
    ("csv", "fr:en\na:b\n", 1, ["fr", "en"], "fr:en"),
    ("tsv", "\t\n\t\n", 0, None, "blank"),
]


@pytest.mark.parametrize("name, text, line, value, said", DAMAGED)
def test_what_is_wrong_with_pairs_is_told_with_its_place(tmp_path, opened, name, text, line, value, said):
    folder = tmp_path / "own"
    lay(folder, name)
    (folder / f"dev.{name}").write_text(text)
    with refused(DataError, key=f"dev.{name}", line=line, value=value, says=said):
        opened("files", path=str(folder), source_lang="fr").read(None)


def test_sides_of_different_length_and_options_that_do_not_go(tmp_path, opened):
    folder = tmp_path / "own"
    lay(folder, "suffix")
    (folder / "train.en").write_text("one\n")
    with refused(DataError, value=[3, 1]):
        opened("files", path=str(folder), source_lang="fr").read(None)
    for name, options, said in (
        ("files", {"source_lang": "../en"}, "must be a language code"),
        ("files", {"source": "a", "target": "a"}, "two different columns"),
        ("files", {"text": "a"}, "data.text is unknown"),
        ("table", {"text": ["a", "b", "c"]}, "one of one's|a column name"),
        ("table", {"text": ["label"]}, "a column of data.text too"),
        ("table", {"classes": ["a"]}, "two different names"),
        ("features", {"label": ["a", "a"]}, "two different names"),
    ):
        with pytest.raises(DataError, match=said):
            opened(name, **options)


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
LARGE = [
    ("a.csv", "x,y,s,t\n1,2,0,1\n{},3,1,0\n", 3, "{}"),
    ("a.tsv", "x\ty\ts\tt\n1\t2\t0\t1\n{}\t3\t1\t0\n", 3, "{}"),
    ("a.svmlight", "s 1:1\nt 1:2 2:{}\n", 2, "2:{}"),
    ("a.arff", "@attribute x real\n@attribute s {{0,1}}\n@attribute t {{0,1}}\n@data\n1,0,1\n{},1,0\n", 6, "{}"),
]
BAD = [
    ("a.svmlight", "s,7 1:0.5\n", 1, "7", "s, t"),
    ("a.svmlight", "s 1:0.5\nt 2=3\n", 2, "2=3", ""),
    ("a.svmlight", "s -2:1\n", 1, "-2:1", ""),
    ("a.svmlight", "s 1:0.5\nt 2:3 1:2 2:4\n", 2, 2, "once"),
    ("a.csv", "x,s,t\n1,0,1\nz,1,0\n", 3, "z", "number"),
    ("a.csv", "x,s,t\n1,0,1\n1,2,0\n", 3, "2", "0 or 1"),
    ("a.csv", "x,s,t\n1,0,1\n1\n", 3, 1, ""),
    ("a.svmlight", "s 1:1\ns, 1:2\n", 2, "", "without a name"),
    ("a.svmlight", ",s 1:1\n", 1, "", "without a name"),
    ("a.csv", "x,x,s,t\n1,2,0,1\n", 1, ["x"], "different"),
    ("a.csv", ",x,s,t\n1,2,0,1\n", 1, "", "a name"),
]
for value in ("1e308", "-1e160", "inf", "nan"):
    BAD += [(*bad, text.format(value), n, v.format(value), "between -1e+150 and 1e+150") for *bad, text, n, v in LARGE]


@pytest.mark.parametrize("file, text, line, value, expected", BAD)
def test_what_is_wrong_with_features_is_told_with_its_line(tmp_path, opened, file, text, line, value, expected):
    (tmp_path / file).write_text(text)
    with refused(DataError, key=file, line=line, value=value, says=expected):
        opened("features", path=str(tmp_path / file), label=["s", "t"]).read(None)


def test_questions_about_images_by_split_and_by_one_list(tmp_path, opened):
    folder = tmp_path / "own"
    (folder / "photos").mkdir(parents=True)
    colours = [list(COLOURS)[i % 3] for i in range(80)]
    for i, colour in enumerate(colours):
        (folder / "photos" / f"{i}.jpg").write_bytes(picture(colour))
    ask = {"question": "What colour?"}
    asked = [ask | {"image": f"photos/{i}.jpg", "answer": f"The {c.title()}."} for i, c in enumerate(colours)]
    (folder / "questions.json").write_text(json.dumps(asked))
    found = opened("images", path=str(folder), questions="questions.json", image_size=[8, 8])
    splits = found.read(None)
    images = {s: {q.image for q in splits[s]} for s in SPLITS}
    assert sum(map(len, images.values())) == 80 == len(set.union(*images.values()))
    assert {q.answer for q in splits["train"]} == set(COLOURS) and found.shortfalls == ("own data",)
    for split, part in zip(SPLITS, (asked[:40], asked[40:60], asked[60:])):
        (folder / f"{split}.jsonl.bz2").write_bytes(bz2.compress("".join(json.dumps(q) + "\n" for q in part).encode()))
    assert [len(opened("images", path=str(folder)).read(None)[s]) for s in SPLITS] == [40, 20, 20]
    (folder / "test.jsonl.bz2").unlink()
    for line, value in (({"image": "photos/99.jpg"}, "photos/99.jpg"), ({"answer": " "}, "")):
        (folder / "test.jsonl").write_text(json.dumps(asked[0]) + "\n" + json.dumps(asked[1] | line) + "\n")
        with refused(DataError, key="test.jsonl", line=2, value=value):
            opened("images", path=str(folder))
