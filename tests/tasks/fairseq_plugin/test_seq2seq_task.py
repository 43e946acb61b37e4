"""Encoded rows as fairseq sees them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tasks.fairseq_plugin import seq2seq_task
from tasks.fairseq_plugin.seq2seq_task import EncodedPairsTask, Rows, dictionary
from tasks.seq2seq.encode import Encoded, EncodedSplit, Ragged


def rows(*lists) -> Ragged:
    offsets = np.cumsum([0, *(len(r) for r in lists)])
    return Ragged(np.array([i for r in lists for i in r], dtype=np.int32), offsets)


def test_rows_become_dictionary_numbers():
    words = ["the", "cat", "sat"]
    symbols = dictionary(words)
    found = Rows(rows([0, 2, -1], [], [1]), symbols, eos=True)
    assert [symbols[i] for i in found[0].tolist()] == ["the", "sat", "<unk>", "</s>"]
    assert [symbols[i] for i in found[1].tolist()] == ["</s>"]
    assert found.sizes.tolist() == [4, 1, 2] == [len(found[i]) for i in range(3)]


def test_an_empty_source_gets_something_to_attend_to():
    symbols = dictionary(["the"])
    found = Rows(rows([], [0]), symbols, eos=False)
    assert found[0].tolist() == [symbols.unk()]
    assert found.sizes.tolist() == [1, 1]


@pytest.mark.parametrize("special", ["<unk>", "<s>", "</s>", "<pad>"])
def test_a_text_that_contains_fairseqs_symbols_keeps_its_numbers(special):
    """Gigaword as released is full of "<unk>"; every word must keep its own number behind such a one."""
    words = ["the", special, "cat", "sat"]
    symbols = dictionary(words)
    numbers = Rows(rows([0, 1, 2, 3]), symbols, eos=False)[0].tolist()
    assert len(symbols) == symbols.nspecial + len(words)
    assert [symbols[i] for i in numbers] == words
    assert numbers[1] != getattr(symbols, {"<unk>": "unk", "<s>": "bos", "</s>": "eos", "<pad>": "pad"}[special])()


def test_batches_are_padded_on_the_right_and_shifted():
    split = EncodedSplit(rows([0, 1, 2], [1]), rows([2, 0], [1, 1, 1]), [None, None], {})
    encoded = Encoded(
        None, ["a", "b", "c"], ["x", "y", "z"], {"train": split, "dev": split, "test": split}, "", "", {}, {}
    )
    task = EncodedPairsTask(seq2seq_task.EncodedPairsConfig(), encoded)
    task.load_dataset("valid")
    data = task.dataset("valid")
    sample = data.collater([data[0], data[1]])
    pad, eos = task.target_dictionary.pad(), task.target_dictionary.eos()
    n = task.target_dictionary.nspecial
    order = sample["id"].tolist()
    source = dict(zip(order, sample["net_input"]["src_tokens"].tolist()))
    assert source == {0: [n, n + 1, n + 2], 1: [n + 1, pad, pad]}
    assert dict(zip(order, sample["net_input"]["src_lengths"].tolist())) == {0: 3, 1: 1}
    assert dict(zip(order, sample["target"].tolist())) == {0: [n + 2, n, eos, pad], 1: [n + 1, n + 1, n + 1, eos]}
    previous = dict(zip(order, sample["net_input"]["prev_output_tokens"].tolist()))
    assert previous == {0: [eos, n + 2, n, pad], 1: [eos, n + 1, n + 1, n + 1]}
    assert sample["ntokens"] == 7


def test_a_corpus_must_be_offered_first():
    config = dataclasses.replace(seq2seq_task.EncodedPairsConfig(), encoded="never/offered")
    with pytest.raises(ValueError, match=r"never/offered.*offer"):
        EncodedPairsTask.setup_task(config)
