"""Splits by content, compared with scipy's connected components; texts that we cut and split ourselves: Debian, Reuters."""

import dataclasses
import json
import random
import unicodedata
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from tasks.data import NullProgress
from tasks.data.dataset import cached_parts
from tasks.data.read import splits
from tasks.data.read.splits import NEAR, Parts, near_pairs, normalized, split_by_content, words
from tasks.data.sets import debian
from tasks.data.sets.debian import Description, aligned_rows, description_rows, help_paragraphs
from tasks.data.sets.pairs import reuters_pairs


def of(parts: Parts) -> dict[str, list[int]]:
    assert not parts.left_out
    return {s: getattr(parts, s) for s in ("train", "dev", "test")}


items = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=3), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(items)
def test_no_component_is_split_and_every_item_is_placed_once(keys):
    names = [f"item {i}" for i in range(len(keys))]
    parts = of(split_by_content(keys, names))
    assert sorted(i for part in parts.values() for i in part) == list(range(len(keys)))
    rows = np.repeat(range(len(keys)), [len(own) for own in keys])
    columns = np.concatenate(keys) + len(keys)
    graph = coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(keys) + 61,) * 2)
    labels = connected_components(graph, directed=False)[1]
    homes = [{labels[i] for i in part} for part in parts.values()]
    assert not (homes[0] & homes[1] or homes[0] & homes[2] or homes[1] & homes[2])


def test_shares_and_stability():
    keys = [[i // 2] for i in range(20_000)]
    names = [f"item {i}" for i in range(20_000)]
    parts = of(split_by_content(keys, names))
    assert 0.045 < len(parts["test"]) / 20_000 < 0.055 and 0.045 < len(parts["dev"]) / 20_000 < 0.055
    # a corpus that lost items keeps the others where they were, in the same order
    smaller = of(split_by_content(keys[:15_000], names[:15_000]))
    for split in parts:
        assert smaller[split] == [i for i in parts[split] if i < 15_000]
    # many items with one key stay together and are not called alike
    one = split_by_content([["one"]] * 600, names[:600])
    assert sorted(len(part) for part in of(one).values()) == [0, 0, 600] and one.alike == 0
    # and the order in which items come does not matter
    backwards = of(split_by_content(keys[::-1], names[::-1]))
    assert [19_999 - i for i in backwards["test"]] == parts["test"]


ALIKE = [("cafe\u0301 É", "CAFÉ e\u0301!", True), ("Straße", "STRASSE", True), ("Ελλάδος", "ΕΛΛΆΔΟΣ", True)]
ALIKE += [("한국", "\u1112\u1161\u11ab국", True), ("की", "का", False), ("हिन्दी में", "हिन दी में", False)]
ALIKE += [("می\u200cروم", "می روم", False), ("a\u0301b", "a b", False)]
ALIKE += [("rock\u2019n\u2019roll", "rock n roll", True), ("well\u00adknown ❤\ufe0f", "well known 😀", True)]
ALIKE += [("e\u0301-mail", "é mail", True)]


@pytest.mark.parametrize("one, other, alike", ALIKE)
def test_normalized_in_any_script(one, other, alike):
    assert (normalized(one) == normalized(other)) is alike
    assert normalized("GCC-12, the_Compiler!") == "gcc 0 the compiler" and normalized("Élève") == "élève"


CUT = [("我喜欢3D打印。", "我喜 喜欢 0d 打印"), ("我", "我"), ("カフェ、ー", "カフ フェ ー"), ("ไทย", "ไทย")]
CUT += [("ไปไหนมา", "ไปไ ปไห ไหน หนม นมา"), *((same, same) for same in ("राम गया", "서울 역", "a new café"))]


@pytest.mark.parametrize("text, expected", CUT)
def test_words_are_ngrams_where_there_are_no_spaces(text, expected):
    assert words(text) == expected.split()


SCRIPTS = {
    "english": ("abcdefghijklmnop", " "),
    "chinese": ([chr(0x4E00 + i) for i in range(900)], ""),
    "japanese": ([*map(chr, range(0x3042, 0x3090)), *map(chr, range(0x6000, 0x6200))], ""),
    "thai": ([chr(0x0E01 + i) for i in range(40)], ""),
    "vietnamese": ("aăâeêioôơuưydđ", "\u0301 "),
}


@pytest.mark.parametrize("language", SCRIPTS)
def test_near_duplicates_of_any_language_are_in_one_split(language):
    """Of 500 texts and their copies, each with one changed word and another case and Unicode form, none is apart."""
    letters, end = SCRIPTS[language]
    draw = random.Random(1)
    rows = [["".join(draw.choices(letters, k=4 if end else 2)) for _ in range(10)] for _ in range(500)]
    copies = [[*row[:7], "".join(draw.choices(letters, k=2)), *row[8:]] for row in rows]
    texts = [end.join(row) for row in rows] + [unicodedata.normalize("NFD", end.join(row)).upper() for row in copies]
    parts = split_by_content([[] for _ in texts], texts, [texts])
    home = {i: split for split in ("train", "dev", "test") for i in getattr(parts, split)}
    assert not parts.left_out and sum(home[i] != home[i + 500] for i in range(500)) == 0
    assert parts.largest <= 4 and len(parts.dev) > 10


WORDS = ["".join(letters) for letters in product("bcdfghklmnprstv", repeat=3)]  # 3,375; numbers would all count as 0
texts = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=7).map(" ".join), max_size=25)


@settings(max_examples=150, deadline=None)
@given(texts, st.sampled_from([0.3, 0.5, 2 / 3, 0.8, 1.0]))
def test_near_pairs_are_all_pairs_at_least_so_near(texts, least):
    words = [set(text.split()) for text in texts]
    full = [i for i in range(len(texts)) if words[i]]
    expected = {(i, k): len(words[i] & words[k]) / len(words[i] | words[k]) for i, k in combinations(full, 2)}
    pairs, nearness = near_pairs(splits.word_matrix(texts), least)
    found = dict(zip(map(tuple, pairs.T.tolist()), nearness.tolist()))
    assert found == {pair: j for pair, j in expected.items() if j >= least - 1e-12}


def test_no_near_pair_is_on_two_sides_and_no_group_swallows_the_corpus():
    """Chains of texts, each near the next one, that would join everything into one group."""
    texts = [" ".join(WORDS[i : i + 4]) for i in range(2900)]  # neighbours share 3 of 5 words
    parts = split_by_content([[i] for i in range(len(texts))], texts, [texts])
    home = {i: split for split in ("train", "dev", "test") for i in getattr(parts, split)}
    assert sorted([*home, *parts.left_out]) == list(range(len(texts)))
    pairs, _ = near_pairs(splits.word_matrix(texts), NEAR)
    assert pairs.shape[1] == 2899 and all(home[i] == home[k] for i, k in pairs.T.tolist() if i in home and k in home)
    assert parts.largest <= 0.005 * len(texts) and 0 < len(parts.left_out) < 0.1 * len(texts)
    assert min(len(parts.test), len(parts.dev)) > 0.02 * len(texts)
    assert Parts(**dataclasses.asdict(parts)) == parts
    assert f"{len(parts.left_out):,} left out" in parts.note("texts")


NAMES = [f"item {i}" for i in range(40)]
PARTS = split_by_content([[] for _ in NAMES], NAMES)


def kept(path, key="k"):
    progress = NullProgress()
    return cached_parts(path, key, progress, ([] for _ in NAMES), NAMES, []), progress.lines


def test_a_split_is_made_once_and_again_without_its_checksum_or_with_a_digit_flipped(tmp_path):
    path, draw = tmp_path / "split.json", random.Random(0)
    assert kept(path)[0] == PARTS and cached_parts(path, "k", NullProgress(), None, [], []) == PARTS
    whole = path.read_text()
    told = json.loads(whole)
    path.write_text(json.dumps({"k": told["k"] | {"dev": [8]}}))
    assert kept(path)[0] == PARTS and json.loads(path.read_text()) == told and kept(path)[1] == []
    digits = [i for i, c in enumerate(whole) if c.isdigit()]
    for _ in range(200):
        i = draw.choice(digits)
        path.write_text(whole[:i] + str((int(whole[i]) + draw.randrange(1, 10)) % 10) + whole[i + 1 :])
        found, said = kept(path)
        assert found == PARTS and said and path.read_text() == whole
    assert kept(path, "other data")[1] and kept(path)[1]


def test_where_too_many_texts_share_words_near_pairs_are_searched_by_hashes(monkeypatch):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 12)) for _ in range(900)]
    texts += [text.rpartition(" ")[0] for text in texts[:300]]
    exact = split_by_content([[]] * len(texts), texts, [texts])
    assert not exact.crowded and "about" not in exact.note("texts")
    monkeypatch.setattr(splits, "MOST_PAIRS", 10)
    parts = split_by_content([[]] * len(texts), texts, [texts])
    home = {i: split for split in ("train", "dev", "test") for i in getattr(parts, split)}
    assert sum(home.get(i) != home.get(i + 900) for i in range(300)) < 10
    assert parts.crowded and parts.missed < 0.02 and "approximate (MinHash)" in parts.note("texts")
    assert Parts(**json.loads(json.dumps(dataclasses.asdict(parts)))) == parts
    matrix = splits.word_matrix(texts)
    pairs, nearness = splits._likely_pairs(matrix)
    exact = dict(zip(map(tuple, splits.near_pairs(matrix)[0].T.tolist()), near_pairs(matrix)[1]))
    assert dict(zip(map(tuple, pairs.T.tolist()), nearness)).items() <= exact.items()
    assert pairs.shape[1] > 0.98 * len(exact)
    assert splits._likely_pairs(splits.word_matrix(["", "!"]))[0].shape == (2, 0)
    # more words than are kept apart: the rest share columns, the exact search is not claimed
    monkeypatch.setattr(splits, "MOST_PAIRS", 10**8)
    monkeypatch.setattr(splits, "MOST_WORDS", 3000)
    assert 3000 <= splits.word_matrix(texts).shape[1] < 3012  # the last of them may end within a text
    assert split_by_content([[]] * len(texts), texts, [texts]).crowded
    monkeypatch.setattr(splits, "MOST_LIKELY", 0.01)
    assert splits._likely_pairs(matrix)[0].shape[1] < 0.9 * len(exact)  # one band


def test_templates_are_split_by_key_within_bounds_and_said(monkeypatch):
    texts = [" ".join(words) for words in product("abcdefgh", "ijklmnop", "qrstuvwx", "yz", ["and so on"])]
    compared = []
    monkeypatch.setattr(splits, "MOST_PAIRS", 1000)
    monkeypatch.setattr(splits, "near_pairs", lambda *sides: compared.append(sides))
    parts = split_by_content([[i] for i in range(len(texts))], texts, [texts])
    assert not compared and parts.crowded and parts.alike > 0.5 * len(texts)
    assert len(parts.dev) > 20 < len(parts.test) and not parts.left_out
    one = splits._work(splits._heads(splits.word_matrix(["a b", "a c", "a d e"])))
    assert one.tolist() == [3, 3, 2]  # the third compares its two rarest words, which no other has


FOO = " Foo is a library that does many good things\n for all of us today.\n"
TRANSLATIONS = [
    f"Package: libfoo1\nDescription-md5: 1\nDescription-en: Foo library - runtime\n{FOO} .\n Second paragraph.",
    f"Package: foo\nDescription-md5: 1\nDescription-en: the foo tool\n{FOO}",
    "Package: bar\nDescription-md5: 2\nDescription-en: short\n Too short a paragraph.\n",
    "Package: other\nDescription-en: one thing\n A paragraph of exactly ten words, which\n is long enough.\n",
    "Package: oldbar\nDescription-md5: 3\nDescription-en: transitional dummy package for bar\n"
    " This package can be removed at any time by the user of this machine.\n",
]
PACKAGES = [
    "Package: libfoo1\nSource: foo (1.2)\nDescription: Foo library - runtime\nDescription-md5: 1",
    "Package: foo\nVersion: 1\nSection: contrib/net\nDescription: the foo tool",
]


def test_descriptions_one_row_per_paragraph_and_the_source_package_speaks():
    foo, other = description_rows(TRANSLATIONS, PACKAGES)
    text = "Foo is a library that does many good things for all of us today."
    assert foo == ["foo", "foo", "net", text, "the foo tool"]
    assert other == ["other", "other", "", "A paragraph of exactly ten words, which is long enough.", "one thing"]


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
