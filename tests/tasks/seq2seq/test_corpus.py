"""Corpora: configuration errors, fallback, published formats, planted alignment, splits without leaks."""

import os
import sys
import types
from itertools import pairwise
from pathlib import Path

import pytest

from tasks.data import DataError, NullProgress
from tasks.data.splits import normalized
from tasks.seq2seq.corpus import LOADERS, Pair, hash_pairs, load_corpus
from tasks.summarization.data import description_pairs, reuters_pairs
from tasks.toy.data import gold_alignment, lexicon, translate
from tasks.translation.data import aligned_rows, help_paragraphs

MIRROR = Path(os.environ.get("SPARSE_ATTENTION_TESTDATA", Path(__file__).resolve().parents[4] / "shared" / "testdata"))
needs_mirror = pytest.mark.skipif(
    not (MIRROR / "translation").is_dir(), reason=f"no test data at {MIRROR} (set SPARSE_ATTENTION_TESTDATA)"
)


# --- configuration ------------------------------------------------------------------------------------------------


def test_all_config_errors_are_told_at_once():
    with pytest.raises(DataError) as caught:
        load_corpus({"name": "multi30", "limit": 3, "fallback": "other", "limits": {"valid": 3, "train": -1}})
    text = str(caught.value)
    for part in ("'multi30k'", "'limits'", "'other'", "'valid'", "limits.train is -1"):
        assert part in text


def test_a_language_pair_that_is_not_there():
    with pytest.raises(DataError, match="no pair en-xx"):
        load_corpus({"name": "multi30k", "source_lang": "en", "target_lang": "xx", "mirror": "."})


def test_without_fallback_missing_data_is_an_error_with_it_a_marked_toy():
    data = {"name": "duc2004", "limits": {"train": 50, "dev": 5, "test": 7}}
    with pytest.raises(DataError, match=r"data\.path"):
        load_corpus(data)
    progress = NullProgress()
    corpus = load_corpus(data | {"fallback": "toy"}, progress)
    assert corpus.name == "toy" and corpus.demo and corpus.stands_for == "duc2004"
    assert "GENERATED TEXT" in corpus.notes[0] and "NIST" in corpus.notes[1]
    assert [len(corpus.splits[s]) for s in ("train", "dev", "test")] == [50, 5, 7]
    assert "going on with generated pairs" in progress.lines[0]


def test_a_config_error_is_not_hidden_by_the_fallback():
    with pytest.raises(DataError, match="the data config is wrong"):
        load_corpus({"name": "duc2004", "fallback": "toy", "bogus": 1})
    with pytest.raises(DataError, match="no pair en-xx"):
        load_corpus({"name": "libreoffice_help", "fallback": "toy", "source_lang": "en", "target_lang": "xx"})


def test_damaged_data_is_not_hidden_by_the_fallback(tmp_path):
    refs = {f"task1_ref{k}.txt": ["one", "two"] for k in range(4)}
    _write(tmp_path, {"input.txt": ["only one document"]} | refs)
    with pytest.raises(DataError, match="different numbers of lines"):
        load_corpus({"name": "duc2004", "path": tmp_path, "fallback": "toy"})


def test_every_loader_has_a_manifest_with_what_a_reader_needs():
    from tasks.data.manifests import load_manifest

    for name in LOADERS:
        manifest = load_manifest(name)
        assert manifest["name"] == name
        assert all(manifest[key] for key in ("title", "kind", "source", "licence", "get"))


# --- toy ----------------------------------------------------------------------------------------------------------


def test_toy_is_reproducible_and_its_splits_are_disjoint():
    data = {"name": "toy", "limits": {"train": 300, "dev": 40, "test": 50}, "seed": 3}
    one, two, other = load_corpus(data), load_corpus(data), load_corpus(data | {"seed": 4})
    assert one.sha256 == two.sha256 != other.sha256
    sources = [{pair.source for pair in one.splits[s]} for s in ("train", "dev", "test")]
    assert [len(s) for s in sources] == [300, 40, 50] and not (sources[0] & sources[1] or sources[0] & sources[2])


def test_the_planted_alignment_explains_every_target_word():
    table = lexicon()
    swaps = doubles = silent = 0
    for pair in load_corpus({"name": "toy", "limits": {"train": 400, "dev": 0, "test": 0}}).splits["train"]:
        source, target, links = pair.source.split(), pair.references[0].split(), gold_alignment(pair)
        assert {j for _, j in links} == set(range(len(target)))
        for i, word in enumerate(source):
            kind, translation = table[word]
            produced = tuple(target[j] for k, j in sorted(links) if k == i)
            assert produced == translation
            doubles += kind == "double"
            silent += kind == "particle"
        order = [i for i, _ in sorted(links, key=lambda link: link[1])]
        swaps += sum(a > b for a, b in pairwise(order))
    assert min(swaps, doubles, silent) > 100


def test_translate_by_hand():
    by_kind = {}
    for word, (kind, target) in lexicon().items():
        by_kind.setdefault(kind, (word, target))
    noun, adjective, double, particle = (by_kind[k] for k in ("noun", "adjective", "double", "particle"))
    target, links = translate([particle[0], noun[0], adjective[0], double[0]])
    assert target == [*adjective[1], *noun[1], *double[1]]
    assert links == {(2, 0), (1, 1), (3, 2), (3, 3)}


def test_too_many_toy_sentences_end_in_an_error_not_a_loop():
    with pytest.raises(DataError, match="not 300 different"):
        load_corpus({"name": "toy", "limits": {"train": 300, "dev": 0, "test": 0}, "max_words": 1, "min_words": 1})


# --- descriptions and help pages: parsing ---------------------------------------------------------------------------

TRANSLATIONS = [
    "Package: libfoo1\nDescription-md5: 1\nDescription-en: Foo library - runtime\n Foo is a library that does many good"
    " things\n for all of us today.\n .\n Second paragraph.",
    "Package: foo\nDescription-md5: 1\nDescription-en: the foo tool\n Foo is a library that does many good things\n"
    " for all of us today.\n",
    "Package: bar\nDescription-md5: 2\nDescription-en: short\n Too short a paragraph.\n",
    "Package: oldbar\nDescription-md5: 3\nDescription-en: transitional dummy package for bar\n"
    " This package can be removed at any time by the user of this machine.\n",
]
PACKAGES = [
    "Package: libfoo1\nSource: foo (1.2)\nDescription: Foo library - runtime\nDescription-md5: 1",
    "Package: foo\nVersion: 1\nDescription: the foo tool",
    "Package: whole\nDescription: a tool described in the list itself\n It has a long description with more than ten"
    " words in it.\n .\n More.\nTag: x",
]


def test_descriptions_one_pair_per_paragraph_and_the_source_package_speaks():
    rows = description_pairs(TRANSLATIONS, PACKAGES)
    assert rows == [
        ["foo", "foo", "Foo is a library that does many good things for all of us today.", "the foo tool"],
        [
            "whole",
            "whole",
            "It has a long description with more than ten words in it.",
            "a tool described in the list itself",
        ],
    ]


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


# --- published formats ----------------------------------------------------------------------------------------------


def _write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.mark.parametrize("layout", ["archive", "flat"])
def test_gigaword(tmp_path, layout):
    train, test = (tmp_path / "train", tmp_path / "Giga") if layout == "archive" else (tmp_path, tmp_path)
    suffix = "" if layout == "archive" else ".filter"
    _write(train, {f"train.article{suffix}.txt": ["a b c .", "d e\u2028f ."], f"train.title{suffix}.txt": ["a c", "d"]})
    _write(train, {"valid.article.filter.txt": ["g h ."], "valid.title.filter.txt": ["g"]})
    _write(test, {"input.txt": ["i j #### .", "k ."], "task1_ref0.txt": ["j", "k"]})
    corpus = load_corpus({"name": "gigaword", "path": tmp_path, "limits": {"train": 1}})
    assert list(corpus.splits["train"]) == [Pair("a b c .", ("a c",))]
    assert list(corpus.splits["dev"]) == [Pair("g h .", ("g",))]
    assert corpus.splits["test"][-1] == Pair("k .", ("k",)) and not corpus.demo
    whole = load_corpus({"name": "gigaword", "path": tmp_path})
    assert whole.splits["train"][1] == Pair("d e f .", ("d",)) and whole.sha256 != corpus.sha256


def test_gigaword_with_sides_of_different_length_or_missing_files(tmp_path):
    _write(tmp_path, {"train.article.txt": ["a", "b"], "train.title.txt": ["a"]})
    with pytest.raises(DataError, match="different numbers of lines") as caught:
        load_corpus({"name": "gigaword", "path": tmp_path})
    assert "train.title.txt: 1" in caught.value.where
    _write(tmp_path, {"train.title.txt": ["a", "b"]})
    with pytest.raises(DataError, match=r"valid\.article\.filter\.txt is missing"):
        load_corpus({"name": "gigaword", "path": tmp_path})


def test_duc_keeps_every_reference_and_skips_missing_ones(tmp_path):
    refs = {f"task1_ref{k}.txt": [f"first {k}", "" if k == 2 else f"second {k}"] for k in range(4)}
    _write(tmp_path / "DUC2004", {"input.txt": ["doc one .", "doc two ."]} | refs)
    corpus = load_corpus({"name": "duc2004", "path": tmp_path})
    assert corpus.splits["test"][0] == Pair("doc one .", ("first 0", "first 1", "first 2", "first 3"))
    assert corpus.splits["test"][1].references == ("second 0", "second 1", "second 3")
    assert len(corpus.splits["train"]) == len(corpus.splits["dev"]) == 0
    with pytest.raises(DataError, match=r"input\.txt is missing"):
        load_corpus({"name": "duc2003", "path": tmp_path})


def test_iwslt(tmp_path):
    _write(tmp_path / "de-en", {
        "train.tags.de-en.de": ["<url>http://x</url>", "<title>T</title>", "Guten Tag & so.", " Zwei <br> drei."],
        "train.tags.de-en.en": ["<url>http://x</url>", "<title>T</title>", "Good day & so.", " Two <br> three."],
    })  # fmt: skip
    for number, name in enumerate(("dev2010", "tst2010", "tst2011", "tst2012", "tst2013", "tst2014", "tst2015")):
        for lang in ("de", "en"):
            _write(tmp_path / "de-en", {f"IWSLT17.TED.{name}.de-en.{lang}.xml": [
                "<?xml version='1.0'?>", '<doc docid="1">', f"<title>{lang}</title>",
                f'<seg id="1"> {lang} {number} &amp; x </seg>', f'<seg id="2">{lang} b</seg>', "</doc>",
            ]})  # fmt: skip
    corpus = load_corpus({"name": "iwslt2017", "path": tmp_path, "source_lang": "de", "target_lang": "en"})
    train = [Pair("Guten Tag & so.", ("Good day & so.",)), Pair("Zwei <br> drei.", ("Two <br> three.",))]
    assert list(corpus.splits["train"]) == train
    assert corpus.splits["dev"][0] == Pair("de 0 & x", ("en 0 & x",))
    assert len(corpus.splits["test"]) == 12 and corpus.splits["test"][2].source == "de 2 & x"


def test_baseline_1m_in_both_directions(tmp_path):
    for part, count in (("train", 3), ("valid", 1), ("test", 2)):
        for lang in ("en", "fr"):
            _write(
                tmp_path / "baseline-1M-enfr",
                {f"baseline-1M_{part}.{lang}": [f"{lang} {part} {i}" for i in range(count)]},
            )
    french = load_corpus({"name": "baseline_1m_enfr", "path": tmp_path, "source_lang": "fr", "target_lang": "en"})
    english = load_corpus({"name": "baseline_1m_enfr", "path": tmp_path, "source_lang": "en", "target_lang": "fr"})
    assert french.splits["train"][2] == Pair("fr train 2", ("en train 2",))
    assert english.splits["dev"][0] == Pair("en valid 0", ("fr valid 0",))
    assert french.sha256 != english.sha256


def test_the_hub_is_asked_when_there_is_no_path(monkeypatch, tmp_path):
    asked = []

    def load_dataset(name, config, cache_dir):
        asked.append((name, config))
        if "gigaword" in name:
            return {
                s: [{"document": f"{s} doc {i}", "summary": f"{s} {i}"} for i in range(3)]
                for s in ("train", "validation", "test")
            }
        raise ConnectionError("offline")

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    module.__spec__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "datasets", module)
    corpus = load_corpus({"name": "gigaword", "root": tmp_path, "limits": {"train": 2}})
    assert list(corpus.splits["train"]) == [Pair("train doc 0", ("train 0",)), Pair("train doc 1", ("train 1",))]
    assert corpus.splits["dev"][0].references == ("validation 0",)
    with pytest.raises(DataError, match="datasets package") as caught:
        load_corpus({"name": "iwslt2017", "root": tmp_path})
    assert "offline" in caught.value.where and asked[-1] == ("IWSLT/iwslt2017", "iwslt2017-de-en")


# --- the mirror -----------------------------------------------------------------------------------------------------


@needs_mirror
@pytest.mark.parametrize("source, target", [("fr", "en"), ("en", "fr"), ("de", "en")])
def test_multi30k(source, target):
    data = {"name": "multi30k", "source_lang": source, "target_lang": target, "mirror": MIRROR}
    corpus = load_corpus(data)
    assert [len(corpus.splits[s]) for s in ("train", "dev", "test")] == [29_000, 1_014, 1_000]
    texts = {
        "en": "A man in an orange hat starring at something.",
        "fr": "Un homme avec un chapeau orange regardant quelque chose.",
        "de": "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    }
    assert corpus.splits["test"][0] == Pair(texts[source], (texts[target],))
    assert len(load_corpus(data | {"test_set": "test_2018_flickr"}).splits["test"]) == 1_071
    with pytest.raises(DataError, match="no test set"):
        load_corpus(data | {"test_set": "test_2019"})
    short = load_corpus(data | {"max_words": {"source": 8}, "min_words": 4})
    assert max(len(p.source.split()) for p in short.splits["train"]) == 8
    assert max(len(p.references[0].split()) for p in short.splits["train"]) > 8


@needs_mirror
def test_a_truncated_mirror_file_is_named(tmp_path):
    name = "translation/multi30k/raw/val.fr.gz"
    for path in (MIRROR / "translation/multi30k/raw").iterdir():
        copy = tmp_path / "translation/multi30k/raw" / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes((MIRROR / name).read_bytes()[:9000])
    with pytest.raises(DataError, match=r"val\.fr\.gz is truncated") as caught:
        load_corpus({"name": "multi30k", "mirror": tmp_path})
    assert "expected 23,001 bytes, got 9,000" in caught.value.where


def test_a_mirror_set_without_a_mirror_says_which_key_to_set():
    with pytest.raises(DataError, match="mirror") as caught:
        load_corpus({"name": "reuters21578"})
    assert "data.mirror=FOLDER" in caught.value.next_step


@needs_mirror
def test_scitldr_has_several_references():
    corpus = load_corpus({"name": "scitldr", "mirror": MIRROR})
    assert [len(corpus.splits[s]) for s in ("train", "dev", "test")] == [1_992, 619, 618]
    assert max(len(pair.references) for pair in corpus.splits["test"]) > 3


@needs_mirror
def test_reuters_titles_and_bodies_do_not_straddle_splits():
    corpus = load_corpus({"name": "reuters21578", "mirror": MIRROR})
    assert len(corpus.splits["train"]) > 10_000 and len(corpus.splits["test"]) > 500
    for side in (lambda pair: pair.source, lambda pair: pair.references[0]):
        texts = {s: {normalized(side(pair)) for pair in corpus.splits[s]} for s in corpus.splits}
        assert not (texts["train"] & texts["test"] or texts["train"] & texts["dev"] or texts["dev"] & texts["test"])


def test_the_hash_sees_every_reference_and_the_split():
    pair, other = Pair("a", ("b",)), Pair("a", ("b", "c"))
    hashes = {hash_pairs(s) for s in ({"train": [pair]}, {"dev": [pair]}, {"train": [other]}, {"train": [pair, pair]})}
    assert len(hashes) == 4


@pytest.mark.network
@pytest.mark.slow
def test_libreoffice_help_for_real(tmp_path):
    data = {"name": "libreoffice_help", "source_lang": "fr", "target_lang": "en", "root": tmp_path}
    try:
        corpus = load_corpus(data)
    except DataError as error:
        pytest.skip(f"the packages cannot be had here: {error.what}")
    assert len(corpus.splits["train"]) > 15_000
    back = load_corpus(data | {"source_lang": "en", "target_lang": "fr"})
    assert {(p.source, p.references[0]) for p in corpus.splits["test"]} == {
        (p.references[0], p.source) for p in back.splits["test"]
    }
    for side in (lambda pair: pair.source, lambda pair: pair.references[0]):
        texts = {s: {normalized(side(pair)) for pair in corpus.splits[s]} for s in corpus.splits}
        assert not (texts["train"] & texts["test"] or texts["train"] & texts["dev"] or texts["dev"] & texts["test"])
