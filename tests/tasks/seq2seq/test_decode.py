"""Decoding a split: order, unknown words copied from where the attention looks, progress, forced outputs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from repro.options import read
from tasks.commands import attention_of
from tasks.commands.attention_of import Finished
from tasks.data.progress import untold
from tasks.data.records import Pair
from tasks.data.symbols import EOS, UNK
from tasks.seq2seq.options import Decode
from tasks.seq2seq.search import decode
from tasks.use.model import load_cell

ROWS = [np.array(row, dtype=np.int32) for row in ([4, 9, 15, 6], [7, 7], [20], [11, 12, 13, 14, 22], [5, 9, 5])]
TOKENS = [[f"s{i}.{j}" for j in range(len(row))] for i, row in enumerate(ROWS)]
VOCABULARY = [f"w{i}" for i in range(20)]


def decoded(model, done=untold, share=None, **given):
    split = SimpleNamespace(source=ROWS, source_tokens=TOKENS.__getitem__)
    encoded = SimpleNamespace(splits={"test": split}, target_vocab=VOCABULARY)
    options = read(Decode, {"max_len_b": 7, "beam": 2} | given, "decode")
    found = decode(model, encoded, options, done, **({} if share is None else {"share": share}))
    return [best for (best,) in found]


@pytest.fixture
def talker(build):
    """A model that likes to say the unknown word, not always."""
    model = build("sparsemax", {"gamma": 0.1}, init_range=1.0, seed=4)
    with torch.no_grad():
        model.generator.bias[UNK] += 3.0
    return model


def test_outputs_come_in_order_whatever_the_batches_and_the_share_of_the_sources(talker):
    one, all_ = decoded(talker, batch_size=1), decoded(talker, batch_size=5)
    assert [h.index for h in one] == [0, 1, 2, 3, 4] == [h.index for h in all_]
    for i, (a, b) in enumerate(zip(one, all_)):
        assert a.ids == b.ids and a.tokens == b.tokens and a.attention.shape == (len(a.ids), len(ROWS[i]))
        torch.testing.assert_close(a.attention, b.attention)
        assert a.attention.dtype == torch.float32
    odd = decoded(talker, share=slice(1, None, 2))
    assert [(h.index, h.ids) for h in odd] == [(h.index, h.ids) for h in all_[1::2]]
    seen = []
    talker.train()
    short = decoded(talker, seen.append, batch_size=2, max_len_b=2)
    assert seen == [0.4, 0.8, 1.0] and not talker.training and all(len(h.tokens) <= 2 for h in short)
    lengths = [len(h.tokens) for h in decoded(talker, max_len_a=1.0, max_len_b=1)]
    assert all(n <= len(row) + 1 for n, row in zip(lengths, ROWS)) and max(lengths) > 2


def test_unknown_words_are_copied_from_where_the_attention_looks(talker):
    plain, copied = decoded(talker, replace_unk=False), decoded(talker, replace_unk=True)
    kinds = set()
    for i, (a, b) in enumerate(zip(plain, copied)):
        assert a.unknown == b.unknown == ("<unk>" in a.tokens) and "<unk>" not in b.tokens
        for t, (before, after) in enumerate(zip(a.tokens, b.tokens, strict=True)):
            expected = TOKENS[i][int(a.attention[t].argmax())] if before == "<unk>" else before
            assert after == expected
            assert before == "<unk>" or before == VOCABULARY[a.ids[t] - 4] or a.ids[t] < 4
            kinds.add((before == "<unk>", after))
    assert {unknown for unknown, _ in kinds} == {True, False}, "needs both unknown and known words"
    assert len({word for unknown, word in kinds if unknown}) > 1, "always the same position shows little"


def test_forced_attention_is_that_of_teacher_forcing(learned, tmp_path):
    """Of two trained rows, one of them fused; on a test sentence and its reference."""
    cells = []
    for mapping in ("softmax", "fusedmax"):
        cell, entry = learned(mapping)
        found = SimpleNamespace(evaluations={"test": entry.evaluation(cell.evaluation_id(cell.tests[0]))})
        given = {"entry": lambda store, entry=entry: entry, "results": lambda store, found=found: found}
        cells.append((mapping, SimpleNamespace(mapping=mapping, config=cell.config, **given)))
    of = Finished("title", None, cells, str(tmp_path))
    source, output = attention_of.stored_sentence(of, 2)
    with pytest.raises(ValueError, match="no test sentence 99999"):
        attention_of.stored_sentence(of, 99999)
    one, other = (heat for line in attention_of.forced(of, source, output).lines for heat in line)
    assert (one.title, other.title) == ("softmax", "fusedmax") and list(one.down) == list(other.down)
    assert not np.allclose(one.weights, other.weights, atol=1e-3)
    for heat, (_, row) in zip((one, other), cells):
        assert heat.weights.shape == (len(heat.down), len(heat.across))
        loaded = load_cell(row.entry(None).folder)
        with loaded.as_test_set([Pair(source, (output,))], {"digits": None}) as test, torch.no_grad():
            ids = torch.tensor([test.splits["test"].source[0].tolist()])
            before = torch.tensor([[EOS, *test.splits["test"].target[0].tolist()]])
            _, attention = loaded.model(ids, torch.tensor([ids.size(1)]), before)
        np.testing.assert_allclose(heat.weights, attention[0].numpy(), atol=1e-5)
