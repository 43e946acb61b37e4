"""Our beam search with fairseq's rules is its SequenceGenerator: the same outputs, scores and attention, in order."""

from __future__ import annotations

import pytest
import torch

import tasks.fairseq_plugin.compat  # noqa: F401  # isort: skip  # before fairseq, for Python 3.14
from fairseq.sequence_generator import SequenceGenerator

from tasks.config.options import read
from tasks.seq2seq.options import Decode
from tasks.seq2seq.search import beam_search

SOURCES = [[3, 9, 15, 6], [7, 7], [19], [11, 12, 13, 14, 2], [5, 9, 5]]


@pytest.mark.parametrize("mapping, params", [("softmax", {}), ("fusedmax", {"gamma": 0.1})])
@pytest.mark.parametrize("beam, penalty", [(1, 1.0), (4, 1.0), (4, 0.3), (15, 1.0)])
@pytest.mark.parametrize("ends", [-1.0, 1.0, 3.0])
def test_the_same_hypotheses(build, batch, symbols, mapping, params, beam, penalty, ends):
    model = build(mapping, params, bidirectional=True, init_range=1.0, seed=4)
    with torch.no_grad():
        model.net.generator.bias[symbols.eos()] += ends  # outputs end early, late or at the limit
    net_input = batch(SOURCES, [[1]] * 5)["net_input"]
    generator = SequenceGenerator([model], symbols, beam_size=beam, max_len_a=0, max_len_b=7, len_penalty=penalty)
    theirs = generator.generate([model], {"net_input": net_input})
    rules = {"beam": beam, "max_len_b": 7, "len_penalty": penalty, "length": "average", "stop": "all"}
    options = read(Decode, rules, "decode")
    ours = beam_search(model.net, net_input["src_tokens"], net_input["src_lengths"], options)
    for source, found, expected in zip(SOURCES, ours, theirs, strict=True):
        assert [h.ids for h in found] == [h["tokens"].tolist() for h in expected]
        for h, e in zip(found, expected):
            assert h.score == pytest.approx(float(e["score"]), abs=1e-4)
            torch.testing.assert_close(h.attention, e["attention"].t()[:, : len(source)].float(), atol=1e-5, rtol=0)
