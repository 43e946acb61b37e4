"""Text that we cut into pairs and split ourselves: package descriptions, help pages, Reuters; no near-duplicate in two splits."""

import random
from collections import Counter

from tasks.data.read.splits import normalized
from tasks.data.sets import debian
from tasks.data.sets.debian import Description, aligned_rows, description_rows, help_paragraphs
from tasks.data.sets.pairs import reuters_pairs

FOO = " Foo is a library that does many good things\n for all of us today.\n"
TRANSLATIONS = [
    f"Package: libfoo1\nDescription-md5: 1\nDescription-en: Foo library - runtime\n{FOO} .\n Second paragraph.",
    f"Package: foo\nDescription-md5: 1\nDescription-en: the foo tool\n{FOO}",
    "Package: bar\nDescription-md5: 2\nDescription-en: short\n Too short a paragraph.\n",
    "Package: oldbar\nDescription-md5: 3\nDescription-en: transitional dummy package for bar\n"
    " This package can be removed at any time by the user of this machine.\n",
]
PACKAGES = [
    "Package: libfoo1\nSource: foo (1.2)\nDescription: Foo library - runtime\nDescription-md5: 1",
    "Package: foo\nVersion: 1\nSection: contrib/net\nDescription: the foo tool",
    "Package: whole\nDescription: a tool described in the list itself\n It has a long description with more than ten"
    " words in it.\n .\n More.\nTag: x",
]


def test_descriptions_one_row_per_paragraph_and_the_source_package_speaks():
    foo, whole = description_rows(TRANSLATIONS, PACKAGES)
    text = "Foo is a library that does many good things for all of us today."
    assert foo == ["foo", "foo", "net", text, "the foo tool"]
    text = "It has a long description with more than ten words in it."
    assert whole == ["whole", "whole", "", text, "a tool described in the list itself"]


def test_help_paragraphs(tmp_path):
    (tmp_path / "text/shared").mkdir(parents=True)
    (tmp_path / "text/shared/a.html").write_text(
        '<h1 id="hd_id1" dir="auto">Open&nbsp;file</h1><p class="menu">no id</p>\n'
        '<p id="par_id2" class="paragraph">Press <span id="sw1" class="switchinline">'
        '<span hidden="true" id="M" class="MAC">'
        '<span class="k">Command</span></span><span hidden="true" id="d"><span class="k">Ctrl</span></span></span>'
        "+F &amp; "
        'see<br>below.</p><p id="bm_id3" class="bascode">Dim x</p>'
        '<p id="par_id4">The <span id="sw2" class="switchinline"><span id="a" class="DRAW">page</span>'
        '<span id="b" class="IMPRESS">slide</span></span> is here</p>',
        encoding="utf-8",
    )
    assert dict(help_paragraphs(tmp_path / "text")) == {
        ("shared/a.html", "hd_id1"): "Open file",
        ("shared/a.html", "par_id2"): "Press Ctrl+F & see below.",
        ("shared/a.html", "par_id4"): "The page is here",
    }


def test_aligned_rows_leave_out_untranslated_and_repeated_paragraphs():
    english = {("a", "1"): "Open", ("a", "2"): "OK", ("b", "1"): "Open", ("c", "9"): "only here"}
    french = {("a", "1"): "Ouvrir", ("a", "2"): "OK", ("b", "1"): "Ouvrir"}
    assert aligned_rows(english, french) == [["Open", "Ouvrir"]]


def test_reuters_articles():
    sgml = (
        '<REUTERS NEWID="1"><TEXT>&#2;\n<TITLE>COCOA &lt;CC> UP</TITLE><DATELINE> X - </DATELINE><BODY>Prices went\nup '
        "today.\n    A second paragraph.\n Reuter\n&#3;</BODY></TEXT></REUTERS>\n"
        '<REUTERS NEWID="2"><TEXT TYPE="BRIEF">&#2;\n<TITLE>ONLY A TITLE</TITLE>\n&#3;</TEXT></REUTERS>\n'
        '<REUTERS NEWID="3"><TEXT><TITLE>ONE LINE</TITLE><BODY>It is so.\n REUTER\n&#3;</BODY></TEXT></REUTERS>'
    )
    assert reuters_pairs(sgml) == [("Prices went up today.", "COCOA <CC> UP"), ("It is so.", "ONE LINE")]


def packages(n: int = 60) -> list[Description]:
    sections = ("perl", "python", "net", "doc")
    return [Description(f"s{i}", f"p{i}", sections[i % 4], "text", f"{sections[i % 4]} text{i}") for i in range(n)]


def test_looking_up_needs_both_texts():
    made, again, other = (list(debian.examples(packages(), 600, 4, split)) for split in ("train", "train", "dev"))
    assert made == again != other
    assert Counter(e.label for e in made) == {0: 200, 1: 200, 2: 200}
    assert set(Counter((e.texts[1], e.label) for e in made).values()) == {50}  # which one is asked tells nothing
    names = {"perl": 0, "python": 1, "net": 2}
    others = Counter()
    for example in made:
        words = example.texts[0].split()
        said = {word: names[words[i + 2]] for i, word in enumerate(words) if word in debian.ORDINALS}
        assert len(said) == 4 and example.label == said.pop(example.texts[1])
        others.update((example.label, other) for other in said.values())
    assert min(others.values()) > 0.8 * 200 and len(others) == 9  # and the other packages are of any class


def assert_no_near_duplicates(splits, side, sample: int = 150) -> None:
    """None of a sample of the test texts shares four fifths of its words with a training text."""
    words = {s: [set(normalized(side(pair)).split()) for pair in splits[s]] for s in ("train", "test")}
    for one in random.Random(0).sample(words["test"], min(sample, len(words["test"]))):
        assert max(len(one & other) / len(one | other) for other in words["train"] if other) < 0.8, one


def test_reuters_titles_and_bodies_do_not_straddle_splits(read, mirror):
    """Reports that come again with one word changed; 215 in all."""
    splits = read("reuters21578", mirror=str(mirror))
    assert sum(map(len, splits.values())) == 22 * 5 + 21 * 5 and min(map(len, splits.values())) > 0
    for rows in splits.values():
        starts = Counter(" ".join(pair.source.split()[:-1]) for pair in rows)
        assert sum(n == 2 for n in starts.values()) >= 0.9 * len(rows) / 2  # with its repetition
    for side in (lambda pair: pair.source, lambda pair: pair.references[0]):
        texts = {s: {normalized(side(pair)) for pair in splits[s]} for s in splits}
        assert not (texts["train"] & texts["test"] or texts["train"] & texts["dev"] or texts["dev"] & texts["test"])
    assert_no_near_duplicates(splits, lambda pair: pair.source)
