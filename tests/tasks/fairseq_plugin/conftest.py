"""Small wrapped models and batches."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

import tasks.fairseq_plugin  # noqa: F401  registers the models
from tasks.fairseq_plugin import compat
from tasks.fairseq_plugin.seq2seq import dictionary

compat.detach_config_store()  # other tests compose in this process

SYMBOLS = dictionary([f"w{i}" for i in range(20)])
PAD, EOS = SYMBOLS.pad(), SYMBOLS.eos()


@pytest.fixture
def symbols():
    return SYMBOLS


@pytest.fixture
def build():
    """`build("fusedmax", {"lam": .1}, layers=2)`: a small `sa_seq2seq`, or another `arch`, as fairseq builds it, in eval mode, in
    double precision."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    sizes_of = {
        "sa_seq2seq": {"embed_dim": 6, "hidden_dim": 8, "layers": 2, "init_range": 0.7},
        "sa_transformer": {"hidden_dim": 8, "ff_dim": 12, "layers": 2, "heads": 2},
    }

    def build(mapping: str = "softmax", params: dict | None = None, seed: int = 1, arch: str = "sa_seq2seq", **options):
        sizes = sizes_of[arch]
        cfg = MODEL_DATACLASS_REGISTRY[arch](
            mapping=mapping, mapping_params=json.dumps(params or {}), **(sizes | options)
        )
        torch.manual_seed(seed)
        task = SimpleNamespace(source_dictionary=SYMBOLS, target_dictionary=SYMBOLS)
        return MODEL_REGISTRY[arch].build_model(cfg, task).double().eval()

    return build


@pytest.fixture
def batch():
    """`batch(sources, targets, left=True)`: net_input and target of rows of word numbers; sources padded on the right or the left."""

    def padded(rows, left: bool = False):
        longest = max(len(r) for r in rows)
        fill = [[PAD] * (longest - len(r)) for r in rows]
        return torch.tensor([[*f, *r] if left else [*r, *f] for r, f in zip(rows, fill)])

    def make(sources, targets, left: bool = False):
        src, tgt = ([[SYMBOLS.nspecial + w for w in row] for row in rows] for rows in (sources, targets))
        tokens = padded(src, left)
        net_input = {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1)}
        net_input |= {"prev_output_tokens": padded([[EOS, *t] for t in tgt])}
        target = padded([[*t, EOS] for t in tgt])
        return {"net_input": net_input, "target": target, "ntokens": int(target.ne(PAD).sum()), "nsentences": len(tgt)}

    return make


@pytest.fixture
def sentences(batch):
    """`sentences(left=False)`: five pairs of different lengths."""
    generator = torch.Generator().manual_seed(3)

    def draw(length):
        return torch.randint(20, (length,), generator=generator).tolist()

    sources, targets = [draw(n) for n in (7, 5, 3, 2, 1)], [draw(n) for n in (4, 6, 1, 3, 5)]
    return lambda left=False: batch(sources, targets, left)
