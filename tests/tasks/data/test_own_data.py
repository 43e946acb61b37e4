"""Data of one's own through the front door: every layout and format gives the same records; what is wrong is told with its place."""

from __future__ import annotations

import bz2
import gzip
import json
import re
import shutil
from types import SimpleNamespace

import datasets
import pandas
import pytest
from own_files import SPLITS, sentence, write_rows
from refusals import refused
from small_vqa2 import COLOURS, picture

from tasks.data import DataError, DataUnavailable, NullProgress
from tasks.data.read import own
from tasks.data.read.guess import guess
from tasks.data.read.splits import near_pairs, word_matrix
from tasks.data.records import Pair

PAIRS = [("un chat", "a cat"), ('il dit "non', 'he says "no'), ("deux, trois", "two, three")]


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


def save(place, form, write):
    """300 pairs or texts with a class as another program writes them; returns the path that is given, and the rows."""
    pairs = [{"fr": f"un chat {sentence(i)}", "en": f"a cat {sentence(-1 - i + 999)}"} for i in range(300)]
    named = [{"text": pair["en"], "label": ("bad", "good")[i % 2]} for i, pair in enumerate(pairs)]
    kinds = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
    place.mkdir()
    match form:
        case "translation":
            write(place, {"a.jsonl": [json.dumps({"id": 1, "translation": pair}) for pair in pairs]})
        case "two files" | "their folder":
            write(place, {"x.y.ids": ["1"]} | {f"x.y.{lang}": [pair[lang] for pair in pairs] for lang in pairs[0]})
            return place / "x.y" if form == "two files" else place, pairs
        case "parquet":
            pandas.DataFrame(pairs).to_parquet(place / "a.parquet")
        case "classes of parquet":
            datasets.Dataset.from_list(named, features=kinds).to_parquet(place / "a.parquet")
    return next(place.iterdir()), named if form == "classes of parquet" else pairs


FORMS = ["translation", "two files", "their folder", "parquet", "classes of parquet"]


@pytest.mark.parametrize("form", FORMS)
def test_files_that_other_programs_write_are_guessed_and_read(tmp_path, opened, write, form):
    path, rows = save(tmp_path / "own", form, write)
    options = guess(str(path), {}).options
    data = opened(options["name"], path=str(path), **{k: v for k, v in options.items() if k != "name"})
    splits = data.read(None)
    records, classes = (r for s in SPLITS for r in splits[s]), data.about.get("classes")
    found = {(r.source, *r.references) if isinstance(r, Pair) else (*r.texts, classes[r.label]) for r in records}
    order = [options["source"], options["target"]] if "source" in options else ["text", "label"]
    assert found == {tuple(row[key] for key in order) for row in rows} and min(map(len, splits.values())) > 1


# as pandas writes a tsv file, and texts with quotes of their own
QUOTES = {
    "pandas": ("text\tlabel", '"He said ""no"""\t{}', 'He said "no"'),
    "plain": ("text\tlabel", '"Hello."\t{}', '"Hello."'),
    "mixed": ("text\tlabel", '"He said ""no"""\t{}\nsix" tall\t1', '"He said ""no"""'),
}


@pytest.mark.parametrize("head, line, text", QUOTES.values(), ids=QUOTES)
def test_cells_of_a_tsv_are_in_quotes_if_the_file_shows_it(tmp_path, head, line, text):
    (path := tmp_path / "a.tsv").write_text("\n".join([head, *(line.format(i) for i in range(60))]) + "\n")
    found = [row.cells for row in own.rows(path, ["text", "label"])]
    assert found[0] == (text, "0") and len(found) in (60, 120) and guess(str(path), {"text": "text", "label": "label"})
    path.write_text('"text"\t"label"\n"two words"\t"a"\n')
    with refused(DataError, key="a.tsv", line=1, says="save it as .csv"):
        list(own.rows(path, ["text", "label"]))


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


def test_damaged_parquet_and_a_spreadsheet_are_refused(tmp_path, opened):
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(99))
    with refused(DataError, key="a.parquet"):
        opened("table", path=str(tmp_path / "a.parquet"))
    pandas.DataFrame([{"text": "a", "label": {"x": 1}}]).to_parquet(tmp_path / "a.parquet")
    with refused(DataError, key="a.parquet", value={"x": 1}, says="record 1: label is"):
        opened("table", path=str(tmp_path / "a.parquet"))
    (path := tmp_path / "my data.xlsx").write_bytes(b"PK\x03\x04")
    with refused(DataError, key="data.path", says="save it in one of these formats"):
        opened("table", path=str(path))


def test_names_of_columns_and_a_blank_side(tmp_path, opened, write):
    write(tmp_path / "own", {f"{s}.tsv": ["headline\tn\tarticle", "Short\t1\tA long text", "\t2\tNo"] for s in SPLITS})
    found = opened("files", path=str(tmp_path / "own"), source="article", target="headline")
    assert list(found.read(None)["dev"]) == [Pair("A long text", ("Short",))]
    assert "1 rows of train.tsv left out: a blank text" in found.shortfalls
    lay(tmp_path / "langs", "suffix", [("un", "one"), (" ", "two"), ("trois", "three")])
    found = opened("files", path=str(tmp_path / "langs"), source_lang="fr")
    assert [p.source for p in found.read(None)["test"]] == ["un", "trois"]
    assert "1 lines of test.fr and test.en left out: a blank text" in found.shortfalls


def test_one_file_is_split_by_content_and_equal_texts_stay_together(tmp_path, opened):
    path = tmp_path / "own.tsv"
    lines = [f"{sentence(i % 300)} {i // 300 or ''}\ttext {i}" for i in range(900)]  # thrice, but for a number
    path.write_text("\n".join(lines) + "\n")
    splits = opened("files", path=str(path)).read(None)
    assert sum(map(len, splits.values())) == 900 and min(map(len, splits.values())) >= 3
    owner = {p.source: s for s in SPLITS for p in splits[s]}
    texts = list(owner)
    near = near_pairs(word_matrix(texts))[0].T.tolist()
    assert len(near) >= 300 and all(owner[texts[i]] == owner[texts[k]] for i, k in near)
    again = opened("files", path=str(path)).read(None)  # the kept split
    assert all(list(again[s]) == list(splits[s]) for s in SPLITS)
    path.write_text("\n".join(lines[:6]) + "\n")
    with refused(DataError, key="own.tsv", says="6 different texts"):
        opened("files", path=str(path))


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


def test_many_unknown_tokens_are_warned_of(tmp_path, opened, write):
    from tasks.cells import _training

    write(tmp_path, {"own.tsv": [f"{sentence(i)}\ttext {i}" for i in range(300)]})
    data = opened("files", path=str(tmp_path / "own.tsv"))
    none = SimpleNamespace(sha256="0", splits={})
    facts = _training.facts(data, none, unknown={"dev.source": 0.34, "dev.target": 0.1, "train.source": 0.02})
    assert "WARNING: the vocabulary lacks 34% of the tokens of dev.source" in facts["notes"][-1]
    assert not any("WARNING" in n for n in _training.facts(data, none, unknown={"dev.source": 0.1})["notes"])
    for subword in ("none", "bpe"):
        encode, lacks = {"encode": {"subword": subword}}, {"dev.source": 0.34}
        none.folder = tmp_path
        made = _training.prepared(encode, data, none, lambda *_: None, None, unknown=lacks)
        assert ("encode.subword=sentencepiece" in made.facts["notes"][-1]) == (subword == "none")


DAMAGED = [
    ("csv", "fr,en,fr\na,b,c\n", 1, ["fr"], ""),
    ("tsv", "a\tb\na b\n", 2, 1, ""),
    ("jsonl", '{"fr": "a", "en": "b"}\n{"fr": "a"}\n', 2, ["en"], ""),
    ("jsonl", '{"fr": "a", "en": ["b"]}\n', 1, ["b"], "en is"),
    ("json", '{"fr": "a"}', 1, ["en"], ""),
    ("json", "[]", 0, None, "empty"),
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
        ("table", {"text": ["a", "b", "c"]}, "one of one's|a column name"),
        ("table", {"text": ["label"]}, "a column of data.text too"),
        ("table", {"classes": ["a"]}, "two different names"),
    ):
        with pytest.raises(DataError, match=said):
            opened(name, **options)


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


def test_parts_of_the_hub_are_refused(tmp_path, opened):
    rows = [{"text": sentence(i), "label": "ab"[i % 2]} for i in range(9)]
    hub, table = tmp_path / "hub", {"text": "text", "label": "label"}
    (hub / "en").mkdir(parents=True)
    for name in ("train-00000-of-00002", "train-00001-of-00002"):
        datasets.Dataset.from_list(rows).to_parquet(hub / "en" / f"{name}.parquet")
    with refused(DataError, key="train-00000-of-00002.parquet", says="in parts"):
        opened("table", path=str(hub), **table)
    (hub / "de" / "train").mkdir(parents=True)
    for name in ("0000", "0001"):
        datasets.Dataset.from_list(rows).to_json(hub / "de" / "train" / f"{name}.jsonl")
    shutil.rmtree(hub / "en")
    with refused(DataUnavailable, says="holds de/train/0000.jsonl, de/train/0001.jsonl"):
        opened("table", path=str(hub), **table)


def test_hidden_files_are_ignored_and_further_ones_are_said(tmp_path, opened):
    def noted():
        found = opened("table", path=str(folder), text="text", label="label")
        found.read(NullProgress())
        return " ".join(found.notes)

    rows, folder = "text,label\n" + "".join(f"{sentence(i)},{'ab'[i % 2]}\n" for i in range(400)), tmp_path / "own"
    folder.mkdir()
    for name in ("train.csv", "dev.csv", "test.csv", ".DS_Store", "._train.csv", "README.md"):
        (folder / name).write_text(rows)
    assert "not read" not in noted()
    (folder / "train (1).csv").write_text(rows)
    (folder / "test.csv").write_text("text,label\n" + "".join(f"{sentence(i)},a\n" for i in range(400, 420)))
    assert "1 files of own are not read: train (1).csv" in (said := noted())
    assert "1 of 2 classes without an example in test: b" in said
    (folder / "train (1).csv").unlink()
    (folder / "dev.csv").rename(folder / "Development.csv")
    with pytest.raises(DataUnavailable, match=r"(?s)no file for dev.* holds Development\.csv"):
        noted()
    (folder / "Development.csv").rename(folder / ".dev.csv")
    assert "dev is a tenth of train" in noted()


SWALLOWED = [("text,label", "good {i},pos", 12, 2), ("source,target", "good {i},bien {i}", 19, 9)]


@pytest.mark.parametrize("head, row, last, lines", SWALLOWED)  # a label of the rows before; no labels, nine such lines
def test_a_quote_that_swallows_rows_is_refused(tmp_path, head, row, last, lines):
    path, columns = tmp_path / "own.csv", tuple(head.split(","))
    rows = [head, *(row.format(i=i) for i in range(2, 30))]
    opens, closes = [*rows], rows[last - 1].replace(",", '",', 1)
    opens[9] = f'"{rows[9]}'
    path.write_text("\n".join([*opens[: last - 1], closes, *rows[last:]]))
    with refused(DataError, key="own.csv", line=10) as told:
        list(own.rows(path, columns))
    said = int(re.search(r"holds (\d+) lines", str(told.value))[1])
    assert abs(said - lines) <= 1 and f"of line 10 and {last};" in told.value.next_step
    path.write_text("\n".join(opens))  # it is never closed
    with refused(DataError, key="own.csv", line=10, says="quotes of line 10;"):
        list(own.rows(path, columns))
    text = '"one, two\nthree\nfour, five\nsix\nseven",' + rows[2].partition(",")[2]  # two of its lines have two cells
    path.write_text("\n".join([*rows, text]))
    assert list(own.rows(path, columns))[-1].cells[0] == "one, two three four, five six seven"


def test_json_lines_in_a_json_file_are_read(tmp_path):
    lines = [json.dumps({"a": i}) for i in range(3)]
    indented = json.dumps([{"a": i} for i in range(3)], indent=1)
    for name, text in (("a.json", "\n".join(lines)), ("b.json", f"[{','.join(lines)}]"), ("c.json", indented)):
        (tmp_path / name).write_text(text)
        assert [row.cells for row in own.rows(tmp_path / name, ("a",))] == [("0",), ("1",), ("2",)]
    (tmp_path / "a.json").write_text("\n".join([*lines, "{"]))
    with pytest.raises(DataError, match=r"a\.json, line 4"):
        list(own.rows(tmp_path / "a.json", ("a",)))
    (tmp_path / "a.json").write_text("{\n}\n{\n}\n")
    with refused(DataError, key="a.json", says="jsonl"):
        list(own.rows(tmp_path / "a.json", ("a",)))
