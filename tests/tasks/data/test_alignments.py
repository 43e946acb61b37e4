from __future__ import annotations

import pytest

from tasks.data.errors import DataError
from tasks.data.sets.aligned import read_pharaoh, read_pud


def test_sure_and_possible_links(tmp_path):
    (tmp_path / "a").write_text("0-0 1?2 2p1\n\n1-0\n")
    got = read_pharaoh(tmp_path / "a")
    assert got[0] == (frozenset({(0, 0)}), frozenset({(0, 0), (1, 2), (2, 1)}))
    assert got[1] == (frozenset(), frozenset()) and got[2][0] == got[2][1] == {(1, 0)}


@pytest.mark.parametrize(("text", "first", "told"), [("1-1 1:2\n", 0, "'1:2' is not a link"), ("0-1\n", 1, "from 1")])
def test_a_word_that_is_no_link_is_named(tmp_path, text, first, told):
    (tmp_path / "a").write_text("1-1\n" + text)
    with pytest.raises(DataError, match=told) as caught:
        read_pharaoh(tmp_path / "a", first)
    assert "line 2" in str(caught.value)


def test_pud_links_stay_within_the_running_text(mirror):
    folder = mirror / "word_alignment" / "pud_enfr"
    sources, targets, golds = read_pud(folder / "alignment.json", folder / "en.conllu", folder / "target.conllu")
    assert sources == [["voices", "of", "the", "choir"], ["snow", "falls"]]
    assert targets == [["voix", "du", "chœur"], ["il", "neige"]]  # a contraction is one word
    assert golds == [({(0, 0), (2, 1), (3, 2)},) * 2, ({(0, 1), (1, 1)},) * 2]
