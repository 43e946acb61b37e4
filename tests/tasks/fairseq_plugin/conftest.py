"""Small models and batches for the fairseq plugin."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

import tasks.fairseq_plugin  # noqa: F401  registers the models
from tasks.fairseq_plugin.seq2seq_model import Seq2SeqConfig, Seq2SeqModel
from tasks.fairseq_plugin.seq2seq_task import dictionary

SYMBOLS = dictionary([f"w{i}" for i in range(20)])
PAD, EOS, BOS = SYMBOLS.pad(), SYMBOLS.eos(), SYMBOLS.eos()


@pytest.fixture
def symbols():
    return SYMBOLS


@pytest.fixture
def build():
    """`build(mapping="fusedmax", params={"lam": .1}, layers=2)`: a small model in eval mode, in double precision."""

    def build(mapping: str = "softmax", params: dict | None = None, seed: int = 1, **options) -> Seq2SeqModel:
        sizes = {"embed_dim": 6, "hidden_dim": 8, "layers": 2, "init_range": 0.7}
        cfg = Seq2SeqConfig(mapping=mapping, mapping_params=json.dumps(params or {}), **(sizes | options))
        torch.manual_seed(seed)
        task = SimpleNamespace(source_dictionary=SYMBOLS, target_dictionary=SYMBOLS)
        return Seq2SeqModel.build_model(cfg, task).double().eval()

    return build


@pytest.fixture
def batch():
    """`batch(sources, targets)`: net_input and target of rows of word numbers, padded on the right."""

    def padded(rows):
        longest = max(len(r) for r in rows)
        return torch.tensor([[*r, *[PAD] * (longest - len(r))] for r in rows])

    def make(sources, targets, width: int | None = None):
        words = lambda rows: [[SYMBOLS.nspecial + w for w in row] for row in rows]  # noqa: E731
        src, tgt = padded(words(sources)), words(targets)
        if width is not None:
            src = torch.nn.functional.pad(src, (0, width - src.size(1)), value=PAD)
        net_input = {
            "src_tokens": src, "src_lengths": src.ne(PAD).sum(1), "prev_output_tokens": padded([[EOS, *t] for t in tgt]),
        }  # fmt: skip
        target = padded([[*t, EOS] for t in tgt])
        return {"net_input": net_input, "target": target, "ntokens": int(target.ne(PAD).sum()), "nsentences": len(tgt)}

    return make


@pytest.fixture
def sentences(batch):
    """Five pairs of different lengths."""
    generator = torch.Generator().manual_seed(3)

    def draw(length):
        return torch.randint(20, (length,), generator=generator).tolist()

    return batch([draw(n) for n in (7, 5, 3, 2, 1)], [draw(n) for n in (4, 6, 1, 3, 5)])
