from __future__ import annotations

import pytest

from tasks.data.alignments import read_naacl, read_pharaoh, read_pud
from tasks.data.errors import DataError


def test_the_two_formats_say_the_same(tmp_path):
    (tmp_path / "a").write_text("0-0 1?2 2p1\n\n1-0\n")
    (tmp_path / "b").write_text("0001 1 1 S\n0001 2 3 P\n0001 3 2 P 0.5\n0003 2 1\n0003 0 2 S\n")
    got = read_pharaoh(tmp_path / "a")
    assert got[0] == (frozenset({(0, 0)}), frozenset({(0, 0), (1, 2), (2, 1)}))
    assert got[1] == (frozenset(), frozenset()) and got[2][0] == got[2][1] == {(1, 0)}
    assert read_naacl(tmp_path / "b", 3) == got


@pytest.mark.parametrize(("text", "first", "told"), [("1-1 1:2\n", 0, "'1:2' is no link"), ("0-1\n", 1, "from 1")])
def test_a_word_that_is_no_link_is_named(tmp_path, text, first, told):
    (tmp_path / "a").write_text("1-1\n" + text)
    with pytest.raises(DataError, match=told) as caught:
        read_pharaoh(tmp_path / "a", first)
    assert "line 2" in str(caught.value)


@pytest.mark.parametrize("line", ["4 1 1 S", "1 1", "1 1 1 X"])
def test_a_line_that_is_no_link_of_a_sentence_is_named(tmp_path, line):
    (tmp_path / "a").write_text("1 1 1 S\n" + line + "\n")
    with pytest.raises(DataError, match=r"line 2.*is no link of a sentence"):
        read_naacl(tmp_path / "a", 3)


def test_hansards_have_the_links_that_were_published(testdata):
    golds = read_pharaoh(testdata / "word_alignment" / "hansards_enfr" / "enfr.gold", first=1)
    assert len(golds) == 447  # Och & Ney 2003, Table 2: 4,038 sure and 13,400 possible
    assert sum(len(sure) for sure, _ in golds) == 4038
    assert sum(len(possible - sure) for sure, possible in golds) == 13400


def test_pud_links_stay_within_the_running_text(testdata):
    folder = testdata / "word_alignment" / "pud_enfr"
    sources, targets, golds = read_pud(folder / "alignment.json", folder / "en.conllu", folder / "target.conllu")
    assert len(golds) == len(sources) == len(targets) == 999
    for source, target, (sure, possible) in zip(sources, targets, golds):
        assert sure == possible and all(s < len(source) and t < len(target) for s, t in sure)
    assert sources[0][6] == "transition" and (6, targets[0].index("transition")) in golds[0][0]
    assert any("du" in target for target in targets)  # a contraction is one word
