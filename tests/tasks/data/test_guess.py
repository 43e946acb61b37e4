"""What is guessed from a file: kinds and columns, and the refusals, which name the columns and the next step."""

import csv
import json

import pytest
from refusals import refused

from tasks.data import DataError
from tasks.data.read import own
from tasks.data.read.guess import guess

FR = [f"un chat numéro {i} dort" for i in range(40)]
EN = [f"the cat number {i} sleeps" for i in range(40)]
STARS = [str(1 + i % 5) for i in range(40)]
OTHERS = [f"dogs of kind {i} bark" for i in range(40)]
WORDS = [f"mot{chr(97 + i % 26)}{i}" for i in range(40)]


@pytest.fixture
def file(tmp_path):
    """`file(name, *columns)`: a file with these columns of 40 rows; of a csv or tsv file, `head` is its first line."""

    def write(name, *columns, head=None):
        path, between = tmp_path / name, "," if name.endswith(".csv") else "\t"
        rows = [between.join(row) for row in ([head] if head else []) + list(zip(*columns))]
        if name.endswith("jsonl"):
            rows = [json.dumps(dict(zip(head, row))) for row in zip(*columns)]
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


def sides(source, target, *languages):
    return {"name": "files", "source": source, "target": target} | dict(zip(("source_lang", "target_lang"), languages))


def labelled(label, *texts):
    return {"name": "table", "text": list(texts), "label": label}


FILES, TURNED = {"name": "files"}, {"source_lang": "en", "target_lang": "fr"}
GUESSED = [
    ("p.tsv", None, (FR, EN), {}, "pairs", FILES),
    ("p.tsv", None, (WORDS, EN), {}, "pairs", FILES),
    ("p.tsv", ("source", "target"), (FR, EN), {}, "pairs", sides("source", "target")),
    ("p.tsv", ("klingon", "vulcan"), (FR, EN), {"source": "vulcan"}, "pairs", sides("vulcan", "klingon")),
    ("p.csv", ("fr", "en"), (FR, EN), {}, "pairs", sides("fr", "en", "fr", "en")),
    ("p.tsv", ("en", "zh_CN"), (FR, EN), {}, "pairs", sides("en", "zh_CN", "en", "zh_CN")),
    ("p.csv", ("Russian", "German"), (FR, EN), {}, "pairs", sides("Russian", "German", "ru", "de")),
    ("p.csv", ("en_old", "en_new"), (FR, EN), {}, "pairs", sides("en_old", "en_new")),
    ("p.csv", ("target", "source"), (FR, EN), {}, "pairs", sides("source", "target")),
    ("p.csv", ("id", "fr", "en"), (WORDS, FR, EN), TURNED, "pairs", sides("en", "fr", "en", "fr")),
    ("p.jsonl", ("article", "headline"), (FR, EN), {}, "summaries", sides("article", "headline")),
    ("r.csv", ("review", "stars"), (EN, STARS), {}, "text", labelled("stars", "review")),
    ("r.csv", ("name", "stars"), (WORDS, STARS), {}, "text", labelled("stars", "name")),
    ("r.jsonl", ("a", "b", "c"), (EN, OTHERS, STARS), {}, "texts", labelled("c", "a", "b")),
    ("r.csv", ("a", "b", "c"), (EN, OTHERS, STARS), {"text": "b"}, "text", labelled("c", "b")),
    ("r.csv", ("a", "kind", "label"), (EN, STARS, STARS), {}, "text", labelled("label", "a")),
]


@pytest.mark.parametrize("name, head, columns, given, kind, options", GUESSED)
def test_guesses(file, name, head, columns, given, kind, options):
    found = guess(file(name, *columns, head=head), given)
    assert (found.kind, found.options) == (kind, options)
    assert f"{name}: 40 rows" in found.said


REFUSED = [
    ("one.tsv", None, (EN,), {}, ["1 columns of texts instead of two", "column 1 (texts)"]),
    ("id.jsonl", ("paper_id", "title"), (WORDS, EN), {}, ["1 columns of texts", "paper_id (numbers or identifiers)"]),
    ("three.tsv", tuple("abc"), (FR, EN, OTHERS), {}, ["3 columns", "a (texts), b (texts)", "data.source=COLUMN"]),
    ("three.tsv", None, (FR, EN, OTHERS), {}, ["no header line", "keep two columns"]),
    ("three.csv", ("a", "b", "c", "y"), (FR, EN, OTHERS, STARS), {}, ["3 columns", "'data.text=[a,b]' data.label=y"]),
    ("two.csv", ("a", "b", "c"), (EN, STARS, STARS), {}, ["2 columns that could", "data.label=b or data.label=c"]),
    ("r.tsv", None, (EN, STARS), {}, ["no header line", "add a first line"]),
    ("p.csv", ("fr", "en"), (FR, EN), {"label": "fr en"}, ["no column 'fr en'", "correct data.label"]),
    ("p.csv", ("fr", "en"), (FR, EN), {"text": "fr"}, ["no column that is clearly a class"]),
    ("p.csv", ("french", "en"), (FR, EN), {"source": "frenhc"}, ["no column 'frenhc' (did you mean 'french'?)"]),
    ("f.csv", ("a", "b", "sun"), (STARS, STARS, STARS), {}, ["features with labels", "docs/start/my_data.md"]),
    (
        "v.csv",
        ("image", "question", "answer"),
        (WORDS, EN, STARS),
        {},
        ["questions about images", "docs/start/my_data.md"],
    ),
    ("f.arff", None, (STARS,), {}, ["f.arff ends in none of .csv, .tsv"]),
    ("p.doc", None, (FR, EN), {}, ["p.doc ends in none of .csv, .tsv"]),
]


@pytest.mark.parametrize("name, head, columns, given, told", REFUSED)
def test_refusals(file, name, head, columns, given, told):
    with pytest.raises(DataError) as error:
        guess(file(name, *columns, head=head), given)
    assert all(text in str(error.value) for text in told), error.value


LABELS = [([4.0, 5.0], "4, 5"), ([True, False], "false, true"), ([4.5, None], "4.5"), (["ham", "spam"], "ham, spam")]


@pytest.mark.parametrize("labels, classes", LABELS)
def test_all_records_of_a_jsonl_file_are_looked_at(tmp_path, labels, classes):
    """A null in the first record hides no text; numbers and booleans are labels; a column of lists is named as not read."""
    rows = [{"review": en if i else None, "note": "a note", "ids": [i], "y": labels[i % 2]} for i, en in enumerate(EN)]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"y": labels[0], "late": "x"}]))
    if labels[1] is None:
        with pytest.raises(DataError, match=r"ids \(lists or objects\), y \(one value\), late"):
            guess(str(tmp_path / "r.jsonl"), {})
        return
    found = guess(str(tmp_path / "r.jsonl"), {})
    assert found.options == {"name": "table", "text": ["review"], "label": "y"}
    assert f"(y: {classes})" in found.said and found.said.endswith("; not read: note, ids, late")


@pytest.mark.parametrize("between", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["r.csv", "r.tsv"])
def test_the_delimiter_is_found(tmp_path, opened, between, name):
    """Whatever the ending says: of a table with quotes, as spreadsheets write it."""
    quotes = between != "\t" or name == "r.csv"
    rows = [["review", "stars"], *([f'a, "b"; {en}' if quotes else en, star] for en, star in zip(EN, STARS))]
    for more, asked in (([], rows), ([["a", "b", "c"]], None)):
        with open(tmp_path / name, "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, delimiter=between).writerows([*rows, *more])
        if asked:
            found = guess(str(tmp_path / name), {})
            assert found.options == {"name": "table", "text": ["review"], "label": "stars"} and "40 rows" in found.said
            assert [list(row.cells) for row in own.rows(tmp_path / name, ("review", "stars"))] == rows[1:]
    with refused(DataError, key=name, line=42, value=3):
        list(own.rows(tmp_path / name, ("review", "stars")))


def test_folders(file, tmp_path):
    for split in ("train", "dev", "test"):
        file(f"tsv/{split}.tsv", FR, EN)
        file(f"three/{split}.en", EN)
        file(f"three/{split}.fr", FR)
        file(f"three/{split}.de", OTHERS)
        file(f"two/{split}.en", EN)
        file(f"two/{split}.fr", FR)
    file("test/test.tsv", FR, EN)
    assert guess(str(tmp_path / "tsv"), {}).options == {"name": "files"}
    found = guess(str(tmp_path / "two"), {})
    assert found.options == {"name": "files", "source": "en", "target": "fr", "source_lang": "en", "target_lang": "fr"}
    assert guess(str(tmp_path / "two"), {"target": "en"}).options["source"] == "fr"
    assert guess(str(tmp_path / "three"), {"source_lang": "de", "target_lang": "en"}).options["source"] == "de"
    with pytest.raises(DataError, match="3 languages"):
        guess(str(tmp_path / "three"), {})
    file("pairs/a.en", EN)
    file("pairs/a.fr", FR)
    assert guess(str(tmp_path / "pairs"), {}).said.endswith("from a.en to a.fr")
    file("pairs/b.en", EN)
    file("pairs/b.fr", FR)
    with pytest.raises(DataError, match=r"no file for train and test\n.*The folder holds a.en, a.fr, b.en, b.fr"):
        guess(str(tmp_path / "pairs"), {})
    with pytest.raises(DataError, match="only a test file"):
        guess(str(tmp_path / "test"), {})
    with pytest.raises(DataError, match="no file or folder"):
        guess(str(tmp_path / "missing.tsv"), {})


def test_what_the_user_names_decides_the_kind(file):
    """`data=files` makes pairs of a text and a class, `data=table` demands a class."""
    path = file("r.csv", EN, STARS, head=("review", "stars"))
    assert guess(path, {}, "files").options == {"name": "files", "source": "review", "target": "stars"}
    with pytest.raises(DataError, match="no column that is clearly a class"):
        guess(file("p.csv", FR, EN, head=("fr", "en")), {}, "table")
    chinese = [f"我今天去了商店买东西{chr(0x4E00 + i)}" for i in range(40)]  # texts without blanks
    assert guess(file("p.csv", chinese, EN, WORDS, head=("zh", "en", "code")), {}).options["source"] == "zh"
    path = file("p.tsv", [*FR, "lost"], [*EN, "a\tb"])
    with refused(DataError, says="line 41: 3 columns, but 2 in the first line"):
        guess(path, {})
