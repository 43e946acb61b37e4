"""Small models and batches of the encoder-decoder, and a little data set."""

from __future__ import annotations

import pytest
import torch

import sparse_attention as sa
from tasks.config.options import read
from tasks.data.dataset import DataSet, content_sha256
from tasks.data.records import Pair
from tasks.data.symbols import EOS, FIRST, PAD
from tasks.seq2seq.models import lstm

WORDS = 20


@pytest.fixture(scope="session")
def build():
    """`build("fusedmax", {"lam": .1}, layers=2)`: a small model in evaluation mode, in double precision."""

    def build(
        mapping="softmax", params: dict | None = None, seed: int = 1, words: int = WORDS, of=lstm, **options
    ) -> lstm.Model:
        module = sa.make(mapping, **(params or {})) if isinstance(mapping, str) else mapping
        sizes = {"embed_dim": 6, "hidden_dim": 8, "layers": 2, "init_range": 0.7}
        torch.manual_seed(seed)
        return (
            of.Model(read(of.Options, sizes | options, "model"), words + FIRST, words + FIRST, {"cross": module})
            .double()
            .eval()
        )

    return build


@pytest.fixture(scope="session")
def batch():
    """`batch(sources, targets)`: src_tokens, src_lengths, prev_output_tokens and targets of rows of word numbers."""

    def padded(rows):
        longest = max(len(r) for r in rows)
        return torch.tensor([[*r, *[PAD] * (longest - len(r))] for r in rows])

    def make(sources, targets=None):
        src, tgt = ([[FIRST + w for w in row] for row in rows] for rows in (sources, targets or [[]] * len(sources)))
        tokens = padded(src)
        inputs = {
            "src_tokens": tokens,
            "src_lengths": tokens.ne(PAD).sum(1),
            "prev_output_tokens": padded([[EOS, *t] for t in tgt]),
        }
        return inputs, padded([[*t, EOS] for t in tgt])

    return make


@pytest.fixture(scope="session")
def sentences(batch):
    """Five pairs of different lengths."""
    generator = torch.Generator().manual_seed(3)

    def draw(length):
        return torch.randint(WORDS, (length,), generator=generator).tolist()

    return batch([draw(n) for n in (7, 5, 3, 2, 1)], [draw(n) for n in (4, 6, 1, 3, 5)])


@pytest.fixture(scope="session")
def dataset():
    """`dataset(train=[(source, target), ...], dev=..., digits="#")`: a data set of pairs, two references each."""

    def make(train=(), dev=(), test=(), references=("another reference",), name="little", **about) -> DataSet:
        splits = {
            split: [Pair(s, (t, *references)) for s, t in pairs]
            for split, pairs in (("train", train), ("dev", dev), ("test", test))
        }
        return DataSet(
            name, "pairs", {split: content_sha256(pairs) for split, pairs in splits.items()}, lambda progress: splits,
            "written here", about={"source_lang": "fr", "target_lang": "en"} | about,
        )  # fmt: skip

    return make
