"""Splits by content, compared with scipy's connected components."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from tasks.data.splits import normalized, split_by_content

items = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=3), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(items)
def test_no_component_is_split_and_every_item_is_placed_once(keys):
    names = [f"item {i}" for i in range(len(keys))]
    parts = split_by_content(keys, names)
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
    parts = split_by_content(keys, names)
    assert 0.045 < len(parts["test"]) / 20_000 < 0.055 and 0.045 < len(parts["dev"]) / 20_000 < 0.055
    # a corpus that lost items keeps the others where they were, in the same order
    smaller = split_by_content(keys[:15_000], names[:15_000])
    for split in parts:
        assert smaller[split] == [i for i in parts[split] if i < 15_000]
    # and the order in which items come does not matter
    backwards = split_by_content(keys[::-1], names[::-1])
    assert [19_999 - i for i in backwards["test"]] == parts["test"]


def test_normalized_ignores_case_digits_and_punctuation():
    assert normalized("GCC-12, the Compiler!") == normalized("gcc 9 the compiler") == "gcc 0 the compiler"
    assert normalized("Élève") == "élève"
